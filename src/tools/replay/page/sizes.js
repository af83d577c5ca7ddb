// SPDX-License-Identifier: Apache-2.0
// How often each size is asked for, and how many bytes that makes: bins of powers of two.
'use strict';

class SizesChart {
  constructor(canvas, view) {
    this.canvas = canvas;
    this.view = view;
  }
  use(trace) {
    this.trace = trace;
    this.bins = trace.bytes.map((bytes) => bytes === 0 ? 0 : Math.floor(Math.log2(bytes)) + 1);
  }
  count() {
    const {trace, view, bins} = this;
    const counts = [], sums = [];
    for (let block = 0; block < trace.blocks; ++block) {
      const place = view.place(trace.allocated[block]);
      if (place < view.from || place > view.to) continue;
      const bin = bins[block];
      counts[bin] = (counts[bin] || 0) + 1;
      sums[bin] = (sums[bin] || 0) + trace.bytes[block];
    }
    return {counts, sums};
  }
  draw() {
    const plot = this.plot = openPlot(this.canvas);
    const {context} = plot;
    const {counts, sums} = this.found = this.count();
    this.first = counts.findIndex((count) => count > 0);
    this.last = counts.length - 1;
    if (this.first < 0) return;
    const wide = plot.width / (this.last - this.first + 1);
    const mostCount = Math.max(...counts.filter(Boolean)), mostBytes = Math.max(1, ...sums.filter(Boolean));
    drawLevels(plot, ticks(0, mostCount, 4, false).map((count) =>
      [plot.bottom - count / (mostCount * 1.06) * plot.height, countText(count)]));
    context.textBaseline = 'top';
    for (let bin = this.first; bin <= this.last; ++bin) {
      const x = plot.left + (bin - this.first) * wide;
      const bar = (value, most, style, at) => {
        const height = (value || 0) / (most * 1.06) * plot.height;
        context.fillStyle = style;
        context.fillRect(x + wide * at, plot.bottom - height, wide * 0.38, height);
      };
      bar(counts[bin], mostCount, color('use'), 0.1);
      bar(sums[bin], mostBytes, color('live'), 0.5);
      if (wide > 58 || (bin - this.first) % Math.ceil(58 / wide) === 0) {
        context.fillStyle = color('faint');
        context.textAlign = 'left';
        context.fillText(bin === 0 ? '0' : bytesText(Math.pow(2, bin - 1)), x, plot.bottom + 6);
      }
    }
    context.strokeStyle = color('line');
    context.strokeRect(plot.left - 0.5, plot.top - 0.5, plot.width + 1, plot.height + 1);
  }
  legend() {
    const most = Math.max(0, ...this.found.sums.filter(Boolean));
    return [['use', 'requests'], ['live', 'their bytes together (highest bar: ' + bytesText(most) + ')']];
  }
  // Text for a point of the window, or null.
  textAt(clientX, clientY) {
    const box = this.canvas.getBoundingClientRect(), {plot} = this;
    const x = clientX - box.left;
    if (!plot || this.first < 0 || x < plot.left || x >= plot.right) return null;
    const bin = this.first + Math.floor((x - plot.left) / plot.width * (this.last - this.first + 1));
    const range = bin === 0 ? '0 B' : bytesText(Math.pow(2, bin - 1)) + ' to ' + bytesText(Math.pow(2, bin));
    return range + '\n' + countText(this.found.counts[bin] || 0) + ' requests\n' +
        bytesText(this.found.sums[bin] || 0) + ' in all';
  }
}
