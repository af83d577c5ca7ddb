// SPDX-License-Identifier: Apache-2.0
// Lines over time: steps that keep the highest value of each pixel column, so that no peak is
// lost however many events share it.
'use strict';

// One curve's highest value in each pixel column of the plot; NaN where there is none.
function columnsOf(plot, view, count, eventOf, valueOf) {
  const columns = new Float64Array(Math.ceil(plot.width) + 1).fill(NaN);
  const scale = plot.width / (view.to - view.from);
  let before = NaN;
  let low = 0, high = count;
  while (low < high) {  // the first sample in view
    const middle = (low + high) >> 1;
    if (view.place(eventOf(middle)) < view.from) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low > 0) before = valueOf(low - 1);
  let column = 0;
  for (let i = low; i < count; ++i) {
    const place = view.place(eventOf(i));
    if (place > view.to) break;
    const at = Math.floor((place - view.from) * scale);
    for (; column <= at && column < columns.length; ++column) columns[column] = before;
    const value = valueOf(i);
    const shown = columns[Math.min(at, columns.length - 1)];
    if (!(shown > value)) columns[Math.min(at, columns.length - 1)] = value;
    before = value;
  }
  for (; column < columns.length; ++column) columns[column] = before;
  return columns;
}

function drawColumns(plot, columns, yOf, style, width) {
  const {context} = plot;
  context.strokeStyle = style;
  context.lineWidth = width;
  context.beginPath();
  let open = false;
  for (let i = 0; i < columns.length; ++i) {
    if (Number.isNaN(columns[i])) {
      open = false;
      continue;
    }
    const x = plot.left + Math.min(i, plot.width), y = yOf(columns[i]);
    if (open) {
      context.lineTo(x, y);
    } else {
      context.moveTo(x, y);
      open = true;
    }
  }
  context.stroke();
  context.lineWidth = 1;
}

function fillColumns(plot, columns, yOf, style) {
  const {context} = plot;
  context.fillStyle = style;
  context.globalAlpha = 0.25;
  for (let i = 0; i < columns.length && i < plot.width; ++i) {
    const y = yOf(columns[i]);
    if (y < plot.bottom) context.fillRect(plot.left + i, y, 1, plot.bottom - y);
  }
  context.globalAlpha = 1;
}

// The value of a sampled curve at an event.
function sampleAt(samples, values, event) {
  let low = 0, high = samples.event.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (samples.event[middle] <= event) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low === 0 ? NaN : values[low - 1];
}

class MemoryChart {
  constructor(canvas, view) {
    this.canvas = canvas;
    this.view = view;
    handleGestures(canvas, view, null);
  }
  // `chosen` is a loaded strategy, `others` the other ones' samples.
  use(trace, chosen, others) {
    Object.assign(this, {trace, chosen, others});
  }
  draw() {
    const plot = this.plot = openPlot(this.canvas);
    const curves = this.curves(plot);
    // A pool that is far above everything else would press the rest flat: it is cut off.
    let most = 1, highest = 0;
    for (const curve of curves) {
      for (const value of curve.columns) {
        if (value > highest) highest = value;
        if (curve.sets && value > most) most = value;
      }
    }
    const top = Math.min(highest, most * 2.5) * 1.06;
    this.cut = curves.find((curve) => curve.color === 'pool').columns.some((value) => value > top);
    const yOf = (value) => plot.bottom - Math.min(1, Math.max(0, value / top)) * plot.height;
    drawLevels(plot, ticks(0, top, 5, true).map((value) => [yOf(value), bytesText(value)]));
    fillColumns(plot, curves[curves.length - 1].columns, yOf, color('live'));
    for (const curve of curves) drawColumns(plot, curve.columns, yOf, color(curve.color), curve.width);
    drawFrame(plot, this.view);
    drawSelection(plot, this.canvas, true);
  }
  curves(plot) {
    const {view, trace, chosen, others} = this;
    const sampled = (samples, values) =>
        columnsOf(plot, view, samples.event.length, (i) => samples.event[i], (i) => values[i]);
    const curves = others.map((samples) => ({columns: sampled(samples, samples.pool), color: 'other', width: 1}));
    curves.push({columns: sampled(chosen.samples, chosen.samples.pool), color: 'pool', width: 2});
    curves.push({columns: sampled(chosen.samples, chosen.samples.use), color: 'use', width: 1.5, sets: true});
    curves.push({columns: columnsOf(plot, view, trace.events, (i) => i, (i) => trace.live[i]), color: 'live', width: 1,
                 sets: true});
    return curves;
  }
  legend(event) {
    const {samples} = this.chosen;
    const value = (values) => event < 0 ? '' : ' ' + bytesText(sampleAt(samples, values, event) || 0);
    return [['pool', 'held from the device' + value(samples.pool) + (this.cut ? ' (cut off)' : '')],
            ['use', 'in use' + value(samples.use)],
            ['live', 'live' + (event < 0 ? '' : ' ' + bytesText(this.trace.live[event]))],
            ['other', 'held by the other strategies']];
  }
}

class FragmentationChart {
  constructor(canvas, view) {
    this.canvas = canvas;
    this.view = view;
    handleGestures(canvas, view, null);
  }
  use(chosen) {
    this.chosen = chosen;
  }
  draw() {
    const plot = this.plot = openPlot(this.canvas);
    const {samples} = this.chosen;
    const yOf = (share) => plot.bottom - share * plot.height;
    drawLevels(plot, [0, 0.25, 0.5, 0.75, 1].map((share) => [yOf(share), (share * 100) + '%']));
    const columns = columnsOf(plot, this.view, samples.event.length, (i) => samples.event[i],
                              (i) => samples.fragmentation[i]);
    if (samples.fragmentation.every(Number.isNaN)) {
      plot.context.fillStyle = color('faint');
      plot.context.textAlign = 'center';
      plot.context.fillText('this strategy keeps no free chunks', plot.left + plot.width / 2, plot.top + 30);
    } else {
      fillColumns(plot, columns, yOf, color('pool'));
      drawColumns(plot, columns, yOf, color('pool'), 1.5);
    }
    drawFrame(plot, this.view);
    drawSelection(plot, this.canvas, true);
  }
}
