// Finding ranks by what is typed: a number, a part of a host's name, a coordinate such as pp=3, or several of these.
// No element is made here: `search` is a plain function over the session's ranks.

const COORDINATE = /^(dp|tp|pp|cp|ep|rank|attempt)\s*[=:]?\s*(\d+)$/;

// What is searched: a row for each rank, [{rank, host, ...}], from the job's rows; the highest device of each.
export function indexOf(rows) {
  const ranks = new Map();
  for (const row of rows) {
    const known = ranks.get(row.rank);
    if (!known || (row.peak_bytes ?? -1) > (known.row.peak_bytes ?? -1)) {
      ranks.set(row.rank, { rank: row.rank, text: String(row.rank), host: (row.host_name ?? "").toLowerCase(), row });
    }
  }
  return [...ranks.values()].sort((a, b) => a.rank - b.rank);
}

// The first `most` ranks that fit all words, those that fit best first; and how many fit.
export function search(index, text, most = 12) {
  const words = text.toLowerCase().split(/[\s,]+/).filter(Boolean);
  if (!words.length) return { found: [], count: 0 };
  const tests = words.map(testOf);
  const fitting = [];
  for (const each of index) {
    let weight = 0;
    for (const test of tests) {
      const fits = test(each);
      if (!fits) {
        weight = 0;
        break;
      }
      weight += fits;
    }
    if (weight) fitting.push({ each, weight });
  }
  fitting.sort((a, b) => b.weight - a.weight || a.each.rank - b.each.rank);
  return { found: fitting.slice(0, most).map(({ each }) => each.row), count: fitting.length };
}

// How well a rank fits a word: 0 not at all; the rank itself counts most, then a number's beginning, then the host.
function testOf(word) {
  const coordinate = COORDINATE.exec(word);
  if (coordinate) {
    const [, name, value] = coordinate;
    return ({ row }) => (row[name] === Number(value) ? 3 : 0);
  }
  if (/^\d+$/.test(word)) {
    return ({ text, host }) => (text === word ? 4 : text.startsWith(word) ? 2 : host.includes(word) ? 1 : 0);
  }
  return ({ host }) => (host === word ? 3 : host.includes(word) ? 2 : 0);
}
