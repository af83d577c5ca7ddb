// SPDX-License-Identifier: Apache-2.0
// What part of the trace is shown: one range across for all charts, by time or by events, and
// one of addresses for the map. And how a canvas becomes a plot with axes.
'use strict';

const MARGIN = {left: 84, right: 16, top: 8, bottom: 24};

class View {
  constructor() {
    this.mode = 'time';
    this.listeners = [];
  }
  // Shows all of a trace.
  use(trace) {
    this.trace = trace;
    this.all();
  }
  get end() {
    if (this.mode === 'events') return Math.max(1, this.trace.events);
    return Math.max(1, this.trace.events === 0 ? 1 : this.trace.time[this.trace.events - 1]);
  }
  all() {
    this.set(0, this.end);
  }
  set(from, to) {
    const least = this.mode === 'events' ? 2 : Math.min(1, this.end);
    if (to - from < least) {
      const middle = (from + to) / 2;
      from = middle - least / 2;
      to = middle + least / 2;
    }
    const width = Math.min(to - from, this.end);
    this.from = Math.min(Math.max(0, from), this.end - width);
    this.to = this.from + width;
    for (const listener of this.listeners) listener();
  }
  zoom(factor, about) {
    this.set(about - (about - this.from) * factor, about + (this.to - about) * factor);
  }
  move(by) {
    this.set(this.from + by, this.to + by);
  }
  // Where an event lies across; one past the last lies at the end.
  place(event) {
    if (this.mode === 'events') return event;
    return event >= this.trace.events ? this.end : this.trace.time[event];
  }
  // The last event at or before a place; -1 before the first.
  eventAt(place) {
    if (this.mode === 'events') return Math.min(this.trace.events - 1, Math.floor(place));
    let low = 0, high = this.trace.events;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.trace.time[middle] <= place) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low - 1;
  }
  text(place) {
    return this.mode === 'events' ? 'event ' + countText(Math.round(place)) : timeText(place);
  }
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
}

// A canvas with its size in CSS pixels, cleared, and the plot's rectangle within.
function openPlot(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  const wide = Math.max(1, Math.round(width * ratio)), high = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = '12px system-ui, "DejaVu Sans", sans-serif';
  const plot = {
    context,
    left: MARGIN.left,
    top: MARGIN.top,
    width: Math.max(1, width - MARGIN.left - MARGIN.right),
    height: Math.max(1, height - MARGIN.top - MARGIN.bottom),
  };
  plot.right = plot.left + plot.width;
  plot.bottom = plot.top + plot.height;
  return plot;
}

function drawFrame(plot, view) {
  const {context} = plot;
  context.strokeStyle = color('line');
  context.fillStyle = color('faint');
  context.textAlign = 'center';
  context.textBaseline = 'top';
  for (const tick of ticks(view.from, view.to, plot.width / 130, false)) {
    const x = plot.left + (tick - view.from) / (view.to - view.from) * plot.width;
    context.fillText(view.mode === 'events' ? countText(tick) : timeText(tick), x, plot.bottom + 6);
    context.beginPath();
    context.moveTo(x, plot.bottom);
    context.lineTo(x, plot.bottom + 4);
    context.stroke();
  }
  context.strokeRect(plot.left - 0.5, plot.top - 0.5, plot.width + 1, plot.height + 1);
}

// Horizontal lines with their values at the left; `lines` are [y, text].
function drawLevels(plot, lines) {
  const {context} = plot;
  context.textAlign = 'right';
  context.textBaseline = 'middle';
  for (const [y, text] of lines) {
    context.strokeStyle = color('line');
    context.beginPath();
    context.moveTo(plot.left, Math.round(y) + 0.5);
    context.lineTo(plot.right, Math.round(y) + 0.5);
    context.stroke();
    context.fillStyle = color('faint');
    context.fillText(text, plot.left - 8, y);
  }
}

// Wheel, drag and double click; `across` is told of places, `upward` (may be null) of shares of
// the height from the bottom.
function handleGestures(canvas, view, upward) {
  let start = null;
  const shares = (event) => {
    const box = canvas.getBoundingClientRect();
    const width = box.width - MARGIN.left - MARGIN.right, height = box.height - MARGIN.top - MARGIN.bottom;
    return {
      x: Math.min(1, Math.max(0, (event.clientX - box.left - MARGIN.left) / width)),
      y: Math.min(1, Math.max(0, 1 - (event.clientY - box.top - MARGIN.top) / height)),
    };
  };
  const placeOf = (share) => view.from + share * (view.to - view.from);
  canvas.addEventListener('wheel', (event) => {
    event.preventDefault();
    const at = shares(event), turn = event.deltaY || event.deltaX, factor = Math.pow(1.0015, turn);
    if (event.shiftKey && upward) {
      upward.zoom(factor, at.y);
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) && !event.shiftKey) {
      view.move(event.deltaX / canvas.clientWidth * (view.to - view.from));
    } else {
      view.zoom(factor, placeOf(at.x));
    }
  }, {passive: false});
  canvas.addEventListener('pointerdown', (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    start = {...shares(event), moving: event.shiftKey};
    canvas.selection = null;
  });
  canvas.addEventListener('pointermove', (event) => {
    if (start === null) return;
    const now = shares(event);
    if (start.moving) {
      view.move((start.x - now.x) * (view.to - view.from));
      if (upward) upward.move(start.y - now.y);
      start = {...now, moving: true};
    } else {
      canvas.selection = {x0: Math.min(start.x, now.x), x1: Math.max(start.x, now.x),
                          y0: Math.min(start.y, now.y), y1: Math.max(start.y, now.y)};
      redrawSoon();
    }
  });
  canvas.addEventListener('pointerup', () => {
    const chosen = canvas.selection;
    start = canvas.selection = null;
    // A click is no area.
    if (chosen && (chosen.x1 - chosen.x0) * canvas.clientWidth > 4) {
      if (upward && (chosen.y1 - chosen.y0) * canvas.clientHeight > 4) upward.choose(chosen.y0, chosen.y1);
      view.set(placeOf(chosen.x0), placeOf(chosen.x1));
    } else {
      redrawSoon();
    }
  });
  canvas.addEventListener('dblclick', () => {
    if (upward) upward.all();
    view.all();
  });
}

function drawSelection(plot, canvas, full) {
  const chosen = canvas.selection;
  if (!chosen) return;
  const y0 = full ? 0 : chosen.y0, y1 = full ? 1 : chosen.y1;
  plot.context.globalAlpha = 0.2;
  plot.context.fillStyle = color('use');
  plot.context.fillRect(plot.left + chosen.x0 * plot.width, plot.bottom - y1 * plot.height,
                        (chosen.x1 - chosen.x0) * plot.width, (y1 - y0) * plot.height);
  plot.context.globalAlpha = 1;
}
