// SPDX-License-Identifier: Apache-2.0
// The memory map: every block a rectangle, its addresses upwards and its life to the right.
'use strict';

// Addresses as one line without the wide gaps in which no block ever lay (regions of a growing
// pool are far apart): `parts` are [first address, end, place on the line].
class AddressLine {
  constructor(offsets, bytes) {
    const order = Array.from(offsets.keys()).filter((i) => !Number.isNaN(offsets[i]) && bytes[i] > 0);
    order.sort((a, b) => offsets[a] - offsets[b]);
    const runs = [];
    let used = 0;
    for (const block of order) {
      const from = offsets[block], to = from + bytes[block];
      const last = runs[runs.length - 1];
      if (last && from <= last[1]) {
        if (to > last[1]) {
          used += to - last[1];
          last[1] = to;
        }
      } else {
        runs.push([from, to]);
        used += to - from;
      }
    }
    this.parts = [];
    this.length = 0;
    const gap = Math.max(1, used / 40);
    for (const [from, to] of runs) {
      const last = this.parts[this.parts.length - 1];
      if (last && from - last[1] <= gap) {
        this.length += to - last[1];
        last[1] = to;
      } else {
        if (last) this.length += used / 80;
        this.parts.push([from, to, this.length]);
        this.length += to - from;
      }
    }
    this.length = Math.max(1, this.length);
  }
  part(find) {
    let low = 0, high = this.parts.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (find(this.parts[middle])) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return this.parts[Math.max(0, low - 1)];
  }
  place(address) {
    const part = this.part((p) => p[0] <= address);
    return part ? part[2] + (address - part[0]) : 0;
  }
  // NaN between the parts.
  address(place) {
    const part = this.part((p) => p[2] <= place);
    const address = part ? part[0] + (place - part[2]) : NaN;
    return part && address <= part[1] ? address : NaN;
  }
}

// The range of places on the address line that is shown.
class Upward {
  constructor(changed) {
    this.changed = changed;
    this.use(1);
  }
  use(length) {
    this.length = length;
    this.from = 0;
    this.to = length;
  }
  all() {
    this.set(0, this.length);
  }
  set(from, to) {
    const width = Math.min(Math.max(to - from, Math.min(256, this.length)), this.length);
    this.from = Math.min(Math.max(0, from), this.length - width);
    this.to = this.from + width;
    this.changed();
  }
  zoom(factor, share) {
    const about = this.from + share * (this.to - this.from);
    this.set(about - (about - this.from) * factor, about + (this.to - about) * factor);
  }
  move(share) {
    const by = share * (this.to - this.from);
    this.set(this.from + by, this.to + by);
  }
  choose(low, high) {
    const width = this.to - this.from;
    this.set(this.from + low * width, this.from + high * width);
  }
}

class MemoryMap {
  constructor(canvas, view, changed) {
    this.canvas = canvas;
    this.view = view;
    this.upward = new Upward(changed);
    this.hovered = -1;
    handleGestures(canvas, view, this.upward);
  }
  use(trace, offsets) {
    this.trace = trace;
    this.offsets = offsets;
    this.line = new AddressLine(offsets, trace.bytes);
    this.upward.use(this.line.length);
    this.bottoms = offsets.map((offset) => this.line.place(offset));
    this.hovered = -1;
  }
  paint(colors) {
    // Blocks of a colour together: changing it is what costs.
    this.colors = colors;
    const counts = new Uint32Array(colors.key.length + 1);
    for (const kind of colors.classes) ++counts[kind + 1];
    for (let i = 1; i < counts.length; ++i) counts[i] += counts[i - 1];
    this.starts = counts.slice();
    this.order = new Uint32Array(colors.classes.length);
    const next = counts.slice();
    colors.classes.forEach((kind, block) => { this.order[next[kind]++] = block; });
  }
  // Pixels of a block, or null if none of it is in view.
  box(block) {
    const {trace, view, upward, plot} = this;
    const bottom = this.bottoms[block], top = bottom + trace.bytes[block];
    if (Number.isNaN(this.offsets[block]) || top <= upward.from || bottom >= upward.to) return null;
    const from = view.place(trace.allocated[block]), to = view.place(trace.freed[block]);
    if (to < view.from || from > view.to) return null;
    const across = plot.width / (view.to - view.from), up = plot.height / (upward.to - upward.from);
    const x0 = plot.left + Math.max(0, (from - view.from) * across);
    const x1 = plot.left + Math.min(plot.width, (to - view.from) * across);
    const y0 = plot.bottom - Math.min(plot.height, (top - upward.from) * up);
    const y1 = plot.bottom - Math.max(0, (bottom - upward.from) * up);
    return {x: x0, y: y0, width: Math.max(0.6, x1 - x0), height: Math.max(0.6, y1 - y0)};
  }
  draw() {
    const plot = this.plot = openPlot(this.canvas);
    const {context} = plot;
    context.fillStyle = color('empty');
    context.fillRect(plot.left, plot.top, plot.width, plot.height);
    context.save();
    context.beginPath();
    context.rect(plot.left, plot.top, plot.width, plot.height);
    context.clip();
    this.colors.key.forEach(([shade], kind) => {
      context.fillStyle = shade;
      for (let i = this.starts[kind]; i < this.starts[kind + 1]; ++i) {
        const box = this.box(this.order[i]);
        if (box === null) continue;
        // A seam between neighbours, where there is room for one.
        const seam = box.height > 3 && box.width > 3 ? 0.5 : 0;
        context.fillRect(box.x, box.y + seam, box.width - seam, box.height - seam);
      }
    });
    const box = this.hovered < 0 ? null : this.box(this.hovered);
    if (box !== null) {
      context.strokeStyle = color('outline');
      context.lineWidth = 2;
      context.strokeRect(box.x, box.y, box.width, box.height);
      context.lineWidth = 1;
    }
    context.restore();
    this.drawAddresses(plot);
    drawFrame(plot, this.view);
    drawSelection(plot, this.canvas, false);
  }
  drawAddresses(plot) {
    const {upward, line} = this;
    const yOf = (place) => plot.bottom - (place - upward.from) / (upward.to - upward.from) * plot.height;
    const levels = [];
    for (const [from, to, at] of line.parts) {
      const low = Math.max(from, from + upward.from - at), high = Math.min(to, from + upward.to - at);
      if (high <= low) continue;
      const wanted = Math.max(1, (high - low) / (upward.to - upward.from) * plot.height / 60);
      for (const address of ticks(low, high, wanted, true)) {
        levels.push([yOf(at + address - from), (address < 0 ? '-' : '') + bytesText(Math.abs(address))]);
      }
      // Where a gap was left out.
      if (at > 0 && at > upward.from) {
        plot.context.fillStyle = color('paper');
        const height = line.length / 80 / (upward.to - upward.from) * plot.height;
        plot.context.fillRect(plot.left, yOf(at), plot.width, Math.min(height, 6));
      }
    }
    let above = Infinity;
    drawLevels(plot, levels.sort((a, b) => b[0] - a[0]).filter(([y]) => {
      if (above - y < 16) return false;
      above = y;
      return true;
    }));
  }
  // The block under a point of the window; -1 where there is none.
  blockAt(clientX, clientY) {
    const box = this.canvas.getBoundingClientRect();
    const x = clientX - box.left, y = clientY - box.top;
    const {plot, view, upward, trace} = this;
    if (!plot || x < plot.left || x > plot.right || y < plot.top || y > plot.bottom) return -1;
    const event = view.eventAt(view.from + (x - plot.left) / plot.width * (view.to - view.from));
    const address = this.line.address(upward.from + (plot.bottom - y) / plot.height * (upward.to - upward.from));
    for (let block = 0; block < trace.blocks; ++block) {
      if (trace.allocated[block] <= event && event < trace.freed[block] && this.offsets[block] <= address &&
          address < this.offsets[block] + trace.bytes[block]) {
        return block;
      }
    }
    return this.nearest(x, y);
  }
  // A sliver is hard to hit: what lies within two pixels will do.
  nearest(x, y) {
    for (let block = 0; block < this.trace.blocks; ++block) {
      const box = this.box(block);
      if (box !== null && x >= box.x - 2 && x <= box.x + box.width + 2 && y >= box.y - 2 &&
          y <= box.y + box.height + 2) {
        return block;
      }
    }
    return -1;
  }
}
