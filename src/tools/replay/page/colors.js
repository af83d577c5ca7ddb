// SPDX-License-Identifier: Apache-2.0
// Blocks in a few classes of colour: by size, by label (tag, or stream) or by how long they live.
'use strict';

const SCALE = ['#3b4cc0', '#4a78d6', '#3f9bc9', '#2fae9f', '#4dbb6b', '#96c84a', '#d8c440', '#f0a23c', '#e5703a',
               '#cf3f3f'];
const KINDS = ['#4e79a7', '#f28e2b', '#59a14f', '#e15759', '#b07aa1', '#76b7b2', '#edc948', '#ff9da7', '#9c755f',
               '#8a8f98'];

// `key` has the colour and the words of each class, `classes` the class of each block.
function colorsOf(trace, about, by) {
  if (by === 'label') return labelColors(trace, about);
  return by === 'life' ? lifeColors(trace) : sizeColors(trace);
}

function sizeColors(trace) {
  // Four times as large from class to class: 1 KiB, 4 KiB ... 64 MiB.
  const classes = trace.bytes.map((bytes) =>
    Math.min(SCALE.length - 1, Math.max(0, Math.floor(Math.log2(Math.max(1, bytes)) / 2) - 4)));
  const key = SCALE.map((shade, i) => [shade, i === 0 ? '< 1 KiB' : bytesText(Math.pow(4, i + 4)) +
                                       (i + 1 === SCALE.length ? ' and more' : '')]);
  return {classes, key};
}

function lifeColors(trace) {
  const life = (block) => {
    const last = trace.freed[block];
    const until = last >= trace.events ? Infinity : trace.time[last];
    return until - trace.time[trace.allocated[block]];
  };
  const classes = trace.bytes.map((_, block) => {
    const lasted = life(block);
    return lasted === Infinity ? SCALE.length - 1 :
        Math.min(SCALE.length - 2, Math.max(0, Math.floor(Math.log10(Math.max(1, lasted)))));
  });
  const key = SCALE.map((shade, i) => [shade, i + 1 === SCALE.length ? 'to the end' : 'from ' + timeText(i === 0 ? 0 :
                                       Math.pow(10, i))]);
  return {classes, key};
}

function labelColors(trace, about) {
  const last = KINDS.length - 1;
  const classes = trace.bytes.map((_, block) => Math.min(last, trace.label[block]));
  const key = about.labels.slice(0, last).map((label, i) => [KINDS[i], label]);
  if (about.labels.length > last) key.push([KINDS[last], 'others']);
  return {classes, key};
}
