// SPDX-License-Identifier: Apache-2.0
// Puts the parts together: what is chosen, what is loaded, when it is drawn.
'use strict';

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId('about-data').textContent);
const view = new View();
const memory = new MemoryChart(byId('memory'), view);
const map = new MemoryMap(byId('map'), view, redrawSoon);
const fragmentation = new FragmentationChart(byId('fragmentation'), view);
const sizes = new SizesChart(byId('sizes'), view);
const loaded = {traces: new Map(), placed: new Map(), samples: new Map()};
const state = {trace: 0, strategy: 0, color: null, hover: -1};

function remembered(store, key, make) {
  if (!store.has(key)) store.set(key, make());
  return store.get(key);
}

const traceOf = (t) => remembered(loaded.traces, t, () => decodeTrace(t, data.traces[t]));
const samplesOf = (t, s) => remembered(loaded.samples, t + '-' + s, () =>
  decodeSamples('samples-' + t + '-' + s, data.traces[t].strategies[s].samples));
const placedOf = (t, s) => remembered(loaded.placed, t + '-' + s, () =>
  decodePlacements('placed-' + t + '-' + s, data.traces[t].blocks, data.traces[t].strategies[s].granule));

let waiting = false;
function redrawSoon() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    redraw();
  });
}

function redraw() {
  memory.draw();
  map.draw();
  fragmentation.draw();
  sizes.draw();
  showLegend();
}

function keyOf(entries) {
  return entries.map(([shade, text]) => {
    const item = document.createElement('span'), box = document.createElement('i');
    box.style.background = shade;
    item.append(box, text);
    return item;
  });
}

function showLegend() {
  const coloured = (entries) => keyOf(entries.map(([name, text]) => [color(name), text]));
  byId('memory-legend').replaceChildren(...coloured(memory.legend(state.hover)));
  byId('sizes-legend').replaceChildren(...coloured(sizes.legend()));
}

function resultsOf(trace) {
  return data.traces[trace].strategies.map((strategy) => data.results[strategy.result]);
}

function showColors(by) {
  const colors = colorsOf(traceOf(state.trace), data.traces[state.trace], by);
  map.paint(colors);
  const seen = new Set(colors.classes);
  byId('color-key').replaceChildren(...keyOf(colors.key.filter((_, i) => seen.has(i))));
  byId('color-key').className = 'legend';
  redrawSoon();
}

function chooseStrategy(strategy) {
  state.strategy = strategy;
  const t = state.trace, about = data.traces[t];
  byId('strategy').value = String(strategy);
  fillComparison(byId('compare'), resultsOf(t), strategy, chooseStrategy);
  const chosen = {samples: samplesOf(t, strategy)};
  const others = about.strategies.map((_, s) => s).filter((s) => s !== strategy).map((s) => samplesOf(t, s));
  memory.use(traceOf(t), chosen, others);
  fragmentation.use(chosen);
  map.use(traceOf(t), placedOf(t, strategy));
  redrawSoon();
}

function chooseTrace(t) {
  state.trace = t;
  const about = data.traces[t], result = resultsOf(t)[0];
  byId('about').textContent = about.name + ': ' + countText(about.events) + ' events in ' +
      timeText(result.trace_duration_us) + ', ' + bytesText(result.peak_live_bytes) + ' live at the peak, on ' +
      result.device;
  byId('strategy').replaceChildren(...about.strategies.map((s, i) => new Option(data.results[s.result].strategy, i)));
  const kinds = [['size', 'size'], ['label', about.labelled], ['life', 'lifetime']];
  byId('color').replaceChildren(...kinds.map(([value, text]) => new Option(text, value)));
  const by = state.color || (about.labelled === 'tag' ? 'label' : 'size');
  byId('color').value = by;
  view.use(traceOf(t));
  sizes.use(traceOf(t));
  chooseStrategy(Math.min(state.strategy, about.strategies.length - 1));
  showColors(by);
}

function describe(block) {
  const trace = traceOf(state.trace), about = data.traces[state.trace];
  const from = trace.time[trace.allocated[block]], last = trace.freed[block];
  const life = last >= trace.events ? 'never freed' :
      'freed at ' + timeText(trace.time[last]) + ' (event ' + countText(last) + '), after ' +
      timeText(trace.time[last] - from);
  return 'block ' + block + ', ' + bytesText(trace.bytes[block]) + ' (' + countText(trace.bytes[block]) + ' bytes)\n' +
      'at ' + addressText(map.offsets[block]) + ' from the first region\n' +
      'allocated at ' + timeText(from) + ' (event ' + countText(trace.allocated[block]) + ')\n' + life + '\n' +
      about.labelled + ' ' + about.labels[trace.label[block]];
}

function showTip(text, event) {
  const tip = byId('tip');
  tip.hidden = text === null;
  if (text === null) return;
  tip.textContent = text;
  const box = tip.getBoundingClientRect();
  const x = event.clientX + 16 + box.width > innerWidth ? event.clientX - 16 - box.width : event.clientX + 16;
  const y = event.clientY + 16 + box.height > innerHeight ? event.clientY - 16 - box.height : event.clientY + 16;
  tip.style.left = Math.max(0, x) + 'px';
  tip.style.top = Math.max(0, y) + 'px';
}

function hoverMap(event) {
  if (event.buttons !== 0) return showTip(null);
  const block = map.blockAt(event.clientX, event.clientY);
  if (block !== map.hovered) {
    map.hovered = block;
    redrawSoon();
  }
  showTip(block < 0 ? null : describe(block), event);
}

function hoverCurve(chart, textOf) {
  chart.canvas.addEventListener('mousemove', (event) => {
    const box = chart.canvas.getBoundingClientRect(), {plot} = chart;
    const share = (event.clientX - box.left - plot.left) / plot.width;
    if (share < 0 || share > 1) return;
    const place = view.from + share * (view.to - view.from);
    state.hover = view.eventAt(place);
    showLegend();
    showTip(state.hover < 0 || event.buttons !== 0 ? null : view.text(place) + '\n' + textOf(state.hover), event);
  });
}

function listen() {
  view.listeners.push(redrawSoon);
  byId('trace').addEventListener('change', (event) => chooseTrace(Number(event.target.value)));
  byId('strategy').addEventListener('change', (event) => chooseStrategy(Number(event.target.value)));
  byId('color').addEventListener('change', (event) => {
    state.color = event.target.value;
    showColors(state.color);
  });
  byId('across').addEventListener('change', (event) => {
    view.mode = event.target.value;
    view.all();
  });
  const middle = () => (view.from + view.to) / 2;
  byId('zoom-in').addEventListener('click', () => view.zoom(0.5, middle()));
  byId('zoom-out').addEventListener('click', () => view.zoom(2, middle()));
  byId('zoom-all').addEventListener('click', () => {
    map.upward.all();
    view.all();
  });
  byId('theme').addEventListener('click', () => {
    const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === 'dark' :
        matchMedia('(prefers-color-scheme: dark)').matches;
    document.documentElement.dataset.theme = dark ? 'light' : 'dark';
    redrawSoon();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redrawSoon);
  new ResizeObserver(redrawSoon).observe(document.querySelector('main'));
  byId('map').addEventListener('mousemove', hoverMap);
  byId('sizes').addEventListener('mousemove', (event) => showTip(sizes.textAt(event.clientX, event.clientY), event));
  hoverCurve(memory, (event) => memory.legend(event).slice(0, 3).map(([, text]) => text).join('\n'));
  hoverCurve(fragmentation, (event) => 'fragmentation ' + percentText(
      sampleAt(fragmentation.chosen.samples, fragmentation.chosen.samples.fragmentation, event)));
  for (const canvas of document.querySelectorAll('canvas')) {
    canvas.addEventListener('mouseleave', () => {
      state.hover = -1;
      map.hovered = -1;
      showTip(null);
      redrawSoon();
    });
  }
}

byId('trace').replaceChildren(...data.traces.map((about, i) => new Option(about.name, i)));
listen();
chooseTrace(0);
redraw();
document.documentElement.dataset.ready = String(Math.round(performance.now()));
