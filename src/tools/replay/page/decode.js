// SPDX-License-Identifier: Apache-2.0
// From the page's binary parts to arrays. The writer is page_data.cc: numbers are base-128
// varints, lowest bits first, and the parts are base64 text in <script> elements.
'use strict';

class PartReader {
  constructor(id) {
    const binary = atob(document.getElementById(id).textContent.trim());
    this.bytes = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; ++i) this.bytes[i] = binary.charCodeAt(i);
    this.at = 0;
  }
  // Beyond 32 bits, so by multiplication.
  number() {
    let value = 0;
    for (let scale = 1;; scale *= 128) {
      const byte = this.bytes[this.at++];
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
  }
  signed() {
    const value = this.number();
    return value % 2 === 1 ? -(value + 1) / 2 : value / 2;
  }
}

// Events in order: microseconds since the one before, then 0, bytes and label for an
// allocation, or for a free how many blocks ago its block was allocated.
function decodeTrace(index, about) {
  const reader = new PartReader('trace-' + index);
  const events = about.events, blocks = about.blocks;
  const trace = {
    events, blocks,
    time: new Float64Array(events),
    live: new Float64Array(events),
    bytes: new Float64Array(blocks),
    label: new Uint16Array(blocks),
    allocated: new Int32Array(blocks),            // event
    freed: new Int32Array(blocks).fill(events),   // event; one past the last: never
  };
  let now = 0, live = 0, next = 0;
  for (let event = 0; event < events; ++event) {
    now += reader.number();
    const back = reader.number();
    if (back === 0) {
      trace.bytes[next] = reader.number();
      trace.label[next] = reader.number();
      trace.allocated[next] = event;
      live += trace.bytes[next++];
    } else {
      trace.freed[next - back] = event;
      live -= trace.bytes[next - back];
    }
    trace.time[event] = now;
    trace.live[event] = live;
  }
  return trace;
}

// Offset of each block above the first region; NaN where the request failed.
function decodePlacements(id, blocks, granule) {
  const reader = new PartReader(id);
  const offsets = new Float64Array(blocks);
  for (let block = 0; block < blocks; ++block) {
    const code = reader.number();
    if (code === 0) {
      offsets[block] = NaN;
    } else {
      const value = code - 1;
      offsets[block] = (value % 2 === 1 ? -(value + 1) / 2 : value / 2) * granule;
    }
  }
  return offsets;
}

// The highest values within a few events each: first event, in use, pool, fragmentation.
function decodeSamples(id, count) {
  const reader = new PartReader(id);
  const samples = {
    event: new Int32Array(count),
    use: new Float64Array(count),
    pool: new Float64Array(count),
    fragmentation: new Float64Array(count),
  };
  let event = 0, use = 0, pool = 0;
  for (let i = 0; i < count; ++i) {
    event += reader.number();
    use += reader.signed();
    pool += reader.signed();
    const share = reader.number();
    samples.event[i] = event;
    samples.use[i] = use;
    samples.pool[i] = pool;
    samples.fragmentation[i] = share === 0 ? NaN : (share - 1) / 10000;
  }
  return samples;
}
