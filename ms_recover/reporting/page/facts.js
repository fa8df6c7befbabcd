"use strict";

/* What the page's data says about ranks, in words; and elements whose text never becomes markup. */
// biome-ignore lint/correctness/noUnusedVariables: report.js uses it
const Facts = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { world, steps, ranks, levels, states, verdicts, seen } = data;
  const LETTERS = "abcdefghijklmnopqrst";

  function cellOf(step, rank) {
    const code = LETTERS.indexOf(steps[step].cells[rank]);
    if (code < 0) return null;
    return {
      state: states[Math.floor(code / verdicts.length)],
      verdict: verdicts[code % verdicts.length],
      seen: seen[Number(steps[step].seen[rank])],
    };
  }

  function text(column, rank) {
    return data.texts[ranks[column][rank]].replaceAll("\0", rank).replaceAll("\x01", ranks.source[rank]);
  }

  function domain(level, rank) {
    const number = levels[level] ? levels[level].of[rank] : -1;
    if (number < 0) return levels[level] ? "unknown" : "";
    return levels[level].names[number];
  }

  function hostsOf() {
    if (!levels.length) return [{ name: "", ranks: Array.from({ length: world }, (_, rank) => rank) }];
    const found = new Map();
    for (let rank = 0; rank < world; rank++) {
      const number = levels[0].of[rank];
      if (!found.has(number)) found.set(number, { name: domain(0, rank), ranks: [] });
      found.get(number).ranks.push(rank);
    }
    const upper = (host) => levels.slice(1).map((level) => level.of[host.ranks[0]]);
    const compare = (one, other) => {
      const a = upper(one).reverse();
      const b = upper(other).reverse();
      const differ = a.findIndex((number, index) => number !== b[index]);
      return differ < 0 ? one.ranks[0] - other.ranks[0] : a[differ] - b[differ];
    };
    return [...found.values()].sort(compare);
  }

  function folded(numbers) {
    const runs = [];
    for (const number of numbers) {
      const last = runs[runs.length - 1];
      if (last && number === last[1] + 1) last[1] = number;
      else runs.push([number, number]);
    }
    return runs.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(", ");
  }

  function isAbsent(state) {
    return state === "missing" || state === "lost";
  }

  function words(cell) {
    if (!cell) return "not in the world";
    const state = cell.state === "ok" ? "slice sound" : `slice ${cell.state}`;
    return `${state}, ${cell.verdict}`;
  }

  function element(name, content, kind) {
    const made = document.createElement(name);
    if (kind) made.className = kind;
    for (const child of Array.isArray(content) ? content : [content]) {
      if (child instanceof Node) made.append(child);
      else if (child !== undefined) made.append(document.createTextNode(String(child)));
    }
    return made;
  }

  function table(columns, rows, caption) {
    const head = element(
      "thead",
      element(
        "tr",
        columns.map((column) => element("th", column)),
      ),
    );
    for (const cell of head.querySelectorAll("th")) cell.scope = "col";
    return element("table", [element("caption", caption), head, element("tbody", rows)]);
  }

  return { data, cellOf, text, domain, hostsOf, folded, isAbsent, words, element, table };
})();
