// SPDX-License-Identifier: Apache-2.0
// The table of strategies: the report's figures, the best of each column marked.
'use strict';

const COLUMNS = [
  {name: 'pool', title: 'most bytes held from the device', of: (r) => r.peak_pool_bytes, text: bytesText},
  {name: 'pool/live', title: 'that over the most bytes live', of: (r) => r.pool_over_live, text: (v) => v.toFixed(3),
   best: true},
  {name: 'mean', title: 'the same of the means over the trace\'s time', of: (r) => r.mean_pool_over_live,
   text: (v) => v.toFixed(2), best: true},
  {name: 'needs', title: 'smallest device that serves every request, over the most bytes live',
   of: (r) => r.needs_over_live, text: (v) => v.toFixed(3), best: true},
  {name: 'fragmentation', title: '1 - largest free chunk / free bytes, at the live peak',
   of: (r) => r.external_fragmentation, text: percentText},
  {name: 'waste', title: '1 - requested / in use, at the live peak', of: (r) => r.rounding_waste, text: percentText,
   best: true},
  {name: 'ns per event, cold', title: 'first pass', of: (r) => r.first_ns_per_event, text: (v) => v.toFixed(1),
   best: true},
  {name: 'warm', title: 'median of the later passes', of: (r) => r.warm_ns_per_event, text: (v) => v.toFixed(1),
   best: true},
  {name: 'driver calls', title: 'in the first pass', of: (r) => r.driver_calls, text: countText, best: true},
  {name: 'driver time', title: 'of those calls', of: (r) => r.driver_us, text: timeText, best: true},
  {name: 'failed', title: 'requests', of: (r) => r.failures, text: countText, best: true},
];

function fillComparison(table, results, chosen, choose) {
  const columns = COLUMNS.filter((column) => results.some((r) => column.of(r) !== null && column.of(r) !== undefined) &&
                                             (column.name !== 'failed' || results.some((r) => r.failures > 0)));
  const head = document.createElement('tr');
  for (const {name, title} of [{name: 'strategy', title: ''}, ...columns]) {
    const cell = document.createElement('th');
    cell.textContent = name;
    cell.title = title;
    head.append(cell);
  }
  const rows = results.map((result, i) => comparisonRow(result, results, columns, i === chosen, () => choose(i)));
  table.replaceChildren(document.createElement('thead'), document.createElement('tbody'));
  table.tHead.append(head);
  table.tBodies[0].append(...rows);
}

// As printed: what reads the same is the same, and no mark is due where all are.
function comparisonRow(result, results, columns, isChosen, choose) {
  const row = document.createElement('tr');
  row.className = isChosen ? 'chosen' : '';
  row.addEventListener('click', choose);
  const name = document.createElement('td');
  name.textContent = result.strategy;
  name.title = result.policy;
  row.append(name);
  for (const column of columns) {
    const known = results.map(column.of).filter((v) => v !== null && v !== undefined);
    const value = column.of(result), cell = document.createElement('td');
    const text = (v) => v === null || v === undefined ? '-' : column.text(v);
    cell.textContent = text(value);
    const lowest = text(Math.min(...known));
    if (column.best && cell.textContent === lowest && known.some((v) => text(v) !== lowest)) cell.className = 'best';
    row.append(cell);
  }
  return row;
}
