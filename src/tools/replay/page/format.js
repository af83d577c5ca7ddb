// SPDX-License-Identifier: Apache-2.0
// Numbers for people.
'use strict';

function bytesText(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (bytes >= 1024 && unit + 1 < units.length) {
    bytes /= 1024;
    ++unit;
  }
  return (unit === 0 || bytes >= 100 ? bytes.toFixed(0) : bytes >= 10 ? bytes.toFixed(1) : bytes.toFixed(2)) +
      ' ' + units[unit];
}

function countText(value) {
  return value.toLocaleString('en-US');
}

function timeText(microseconds) {
  if (microseconds >= 1e6) return (microseconds / 1e6).toPrecision(4) + ' s';
  if (microseconds >= 1e3) return (microseconds / 1e3).toPrecision(4) + ' ms';
  return Math.round(microseconds) + ' us';
}

function addressText(offset) {
  return (offset < 0 ? '-0x' : '0x') + Math.abs(offset).toString(16);
}

function percentText(share) {
  return share === null || Number.isNaN(share) ? '-' : (share * 100).toFixed(1) + '%';
}

// Round values between two ends, about `wanted` of them; of bytes in powers of two.
function ticks(from, to, wanted, binary) {
  const rough = (to - from) / Math.max(1, wanted);
  if (!(rough > 0)) return [from];
  const base = binary ? 2 : 10;
  let step = Math.pow(base, Math.floor(Math.log(rough) / Math.log(base)));
  for (const factor of binary ? [1, 2] : [1, 2, 5, 10]) {
    if (step * factor >= rough) {
      step *= factor;
      break;
    }
  }
  const found = [];
  for (let i = Math.ceil(from / step); i * step <= to; ++i) found.push(i * step);
  return found;
}
