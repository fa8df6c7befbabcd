"use strict";

(() => {
  const { data, cellOf, text, domain, hostsOf, folded, isAbsent, words, element, table } = Facts;
  const { world, steps, ranks, levels } = data;
  if (!world || !steps.length) return;

  const MOST_RESULTS = 100;
  const MOST_MATES = 64;
  const GRAVITY = ["keep", "copy", "compose", "unrecoverable"];
  const find = (id) => document.getElementById(id);
  const map = find("map");
  const matrix = find("matrix");
  const details = find("details");
  const results = find("results");
  const view = { rank: -1, step: data.shown, colour: "state", matches: null, marked: [] };
  let hosts = [];
  let mapLaid = null;
  let matrixLaid = null;

  function link(rank) {
    const button = element("button", rank, "link");
    button.type = "button";
    button.addEventListener("click", () => select(rank, view.step, true));
    return button;
  }

  // --- drawing ---

  function looks(palette) {
    const byGroup = (rank) => Drawing.hue(data.groups[rank] ?? rank, palette.dark);
    const byLevel = (one) => (rank) => Drawing.hue(one.of[rank], palette.dark);
    const level = levels.find((_, index) => view.colour === `level${index}`);
    const other = view.colour === "group" ? byGroup : level ? byLevel(level) : null;
    return (rank, step) => {
      const cell = cellOf(step, rank);
      if (!cell) return { fill: palette.absent, verdict: "keep", plain: true };
      const faint = view.matches !== null && !view.matches.has(rank);
      const fill = other ? other(rank) : palette.colours[cell.verdict].fill;
      return {
        fill,
        verdict: cell.verdict,
        faint,
        hollow: isAbsent(cell.state),
        plain: Boolean(other) && cell.verdict === "keep",
      };
    };
  }

  function drawMap() {
    const width = map.clientWidth;
    const palette = Drawing.palette();
    mapLaid = Drawing.layMap(hosts, world, width);
    const pen = Drawing.canvasOf(map, width, mapLaid.height + 6);
    const look = looks(palette);
    pen.translate(0, 3);
    for (const name of mapLaid.names) {
      pen.fillStyle = palette.text;
      pen.font = "13px system-ui, sans-serif";
      pen.textBaseline = "top";
      pen.textAlign = "left";
      pen.fillText(fit(pen, name.text, name.wide), name.x, name.y);
    }
    for (let rank = 0; rank < world; rank++) {
      Drawing.cell(pen, palette, mapLaid.boxes[rank], look(rank, view.step), mapLaid.size >= 24 ? String(rank) : "");
    }
    pen.strokeStyle = palette.ring;
    pen.lineWidth = mapLaid.size >= 18 ? 3 : 2;
    for (const mate of view.marked) {
      const box = mapLaid.boxes[mate];
      pen.strokeRect(box.x - 1, box.y - 1, box.w + 2, box.h + 2);
    }
    Drawing.place(ringOf(map), view.rank < 0 ? null : mapLaid.boxes[view.rank]);
  }

  function fit(pen, name, wide) {
    if (pen.measureText(name).width <= wide) return name;
    let kept = name;
    while (kept.length > 1 && pen.measureText(`${kept}…`).width > wide) kept = kept.slice(0, -1);
    return `${kept}…`;
  }

  function drawMatrix() {
    const width = matrix.clientWidth;
    const palette = Drawing.palette();
    const perHost = hosts.length > 1 ? hosts[0].ranks.length : 1;
    matrixLaid = Drawing.layMatrix(steps, world, width, perHost);
    const { left, fold, columns, w, h, gap } = matrixLaid;
    const pen = Drawing.canvasOf(matrix, width, matrixLaid.height + 6);
    const look = looks(palette);
    pen.translate(0, 3);
    steps.forEach((step, row) => {
      const y = row * (h + 2);
      pen.fillStyle = palette.text;
      pen.font = `${step.step === data.planned ? "700 " : ""}${Math.min(13, h)}px system-ui, sans-serif`;
      pen.textBaseline = "middle";
      pen.textAlign = "left";
      pen.fillText(step.step, 2, y + h / 2);
      const odd = [];
      for (let column = 0; column < columns; column++) {
        const rank = worstRank(row, column, fold);
        const x = Math.round(left + column * w);
        const box = { x, y, w: Math.max(Math.round(left + (column + 1) * w) - x - gap, 1), h };
        const looked = look(rank, row);
        if (looked.verdict !== "keep") odd.push([box, looked, rank]);
        else Drawing.cell(pen, palette, box, looked, world <= 64 && w >= 28 ? String(rank) : "");
      }
      for (const [box, looked, rank] of odd) {
        // wide enough to be seen, over its neighbours
        const seen = box.w >= 5 ? box : { ...box, x: box.x - 1, w: Math.max(box.w, 4) };
        Drawing.cell(pen, palette, seen, looked, world <= 64 && w >= 28 ? String(rank) : "");
      }
    });
    find("fold").textContent = fold > 1 ? `; here a column is ${fold} ranks, and shows the worst` : "";
    Drawing.place(ringOf(matrix), view.rank < 0 ? null : matrixBox(view.rank, view.step));
  }

  function worstRank(row, column, fold) {
    let found = column * fold;
    let worst = -1;
    for (let rank = column * fold; rank < Math.min(world, (column + 1) * fold); rank++) {
      const cell = cellOf(row, rank);
      const gravity = cell ? GRAVITY.indexOf(cell.verdict) : 0;
      if (gravity > worst) [worst, found] = [gravity, rank];
    }
    return found;
  }

  function matrixBox(rank, step) {
    const { left, fold, w, h, gap } = matrixLaid;
    return { x: left + Math.floor(rank / fold) * w, y: step * (h + 2), w: Math.max(w - gap, 2), h };
  }

  function ringOf(board) {
    let ring = board.querySelector(".ring");
    if (!ring) {
      ring = element("div", undefined, "ring");
      board.append(ring);
    }
    return ring;
  }

  function draw() {
    drawMap();
    drawMatrix();
    drawLegend();
  }

  function drawLegend() {
    const palette = Drawing.palette();
    const counts = new Map();
    for (let rank = 0; rank < world; rank++) {
      const cell = cellOf(view.step, rank);
      if (!cell) continue;
      const key = `${cell.verdict} ${cell.state}`;
      counts.set(key, (counts.get(key) || 0) + 1);
    }
    const NAMES = { keep: "keeps its slice", copy: "copied", compose: "put together", unrecoverable: "no source" };
    const gravity = ([key]) => GRAVITY.indexOf(key.split(" ")[0]);
    const entries = [...counts].sort((one, other) => gravity(other) - gravity(one) || (one[0] < other[0] ? 1 : -1));
    find("legend").replaceChildren(
      ...entries.map(([key, count]) => {
        const [verdict, state] = key.split(" ");
        const swatch = document.createElement("canvas");
        const sample = element("span", swatch);
        const pen = Drawing.canvasOf(sample, 16, 16);
        Drawing.cell(
          pen,
          palette,
          { x: 0, y: 0, w: 16, h: 16 },
          { fill: palette.colours[verdict].fill, verdict, hollow: isAbsent(state) },
        );
        const what = state === "ok" ? NAMES[verdict] : `${state}: ${NAMES[verdict]}`;
        return element("li", [sample, `${what}, ${count.toLocaleString("en")}`]);
      }),
    );
  }

  // --- selection ---

  function select(rank, step, scroll) {
    if (rank < 0 || rank >= world) return;
    const stepChanged = step !== view.step;
    view.rank = rank;
    view.step = step;
    const group = data.groups[rank];
    view.marked =
      group === undefined
        ? []
        : data.groups.flatMap((number, mate) => (number === group && mate !== rank ? [mate] : []));
    if (stepChanged) find("step").value = String(step);
    draw();
    describe();
    if (scroll) map.scrollIntoView({ block: "nearest" });
  }

  function describe() {
    const { rank, step, marked } = view;
    const cell = cellOf(step, rank);
    const rows = [["Rank", `${rank}`]];
    for (const [index, level] of levels.entries()) rows.push([level.name, domain(index, rank)]);
    rows.push([`Step ${steps[step].step}`, words(cell)]);
    if (cell)
      rows.push([
        "The scan saw",
        cell.seen === "none" ? "no slice" : `a ${cell.seen} slice`.replace("a unreadable", "an unreadable"),
      ]);
    if (step === data.shown) {
      rows.push(["Why", text("why", rank)]);
      if (text("path", rank)) rows.push(["Slice", text("path", rank)]);
      if (ranks.source[rank] >= 0) rows.push(["From", `rank ${ranks.source[rank]}: ${text("from", rank)}`]);
    }
    const mates = marked.slice(0, MOST_MATES);
    const more = marked.length > mates.length ? ` and ${marked.length - mates.length} more` : "";
    rows.push(["The same on", mates.length ? `ranks ${folded(mates)}${more}` : "no other rank, as far as is known"]);
    const others = steps.slice(0, 12).map((one, index) => `${one.step} ${cellOf(index, rank)?.verdict ?? "-"}`);
    if (steps.length > 1) rows.push(["At each step", others.join(", ")]);
    const list = document.createElement("dl");
    for (const [name, value] of rows) list.append(element("dt", name), element("dd", value));
    details.hidden = false;
    details.replaceChildren(list);
  }

  function nextOdd() {
    for (let ahead = 1; ahead <= world; ahead++) {
      const rank = (Math.max(view.rank, -1) + ahead) % world;
      const cell = cellOf(view.step, rank);
      if (cell && cell.verdict !== "keep") return select(rank, view.step, false);
    }
    find("found").textContent = "Every rank keeps its slice at this step.";
  }

  // --- search ---

  function matching(query) {
    if (/^\s*\d+(\s*-\s*\d+)?(\s*,\s*\d+(\s*-\s*\d+)?)*\s*$/.test(query)) {
      const found = new Set();
      for (const part of query.split(",")) {
        const [first, last = first] = part.split("-").map(Number);
        for (let rank = first; rank <= Math.min(last, world - 1); rank++) found.add(rank);
      }
      return found;
    }
    const wanted = query.trim().toLowerCase();
    const found = new Set();
    for (let rank = 0; rank < world; rank++) {
      const cell = cellOf(view.step, rank);
      const named = levels.map((_, index) => domain(index, rank));
      const known = view.step === data.shown ? [text("why", rank), text("path", rank), text("from", rank)] : [];
      const all = [...named, cell ? cell.state : "", cell ? cell.verdict : "", ...known];
      if (all.some((one) => one.toLowerCase().includes(wanted))) found.add(rank);
    }
    return found;
  }

  function search() {
    const query = find("search").value;
    view.matches = query.trim() ? matching(query) : null;
    const found = view.matches ? [...view.matches] : [];
    find("found").textContent = view.matches
      ? `${found.length.toLocaleString("en")} of ${world.toLocaleString("en")} ranks`
      : "";
    results.hidden = !found.length;
    results.replaceChildren();
    if (found.length) {
      const rows = found.slice(0, MOST_RESULTS).map((rank) => {
        const cell = cellOf(view.step, rank);
        const shown = view.step === data.shown;
        const why = shown ? text("why", rank) : "";
        const cells = [
          link(rank),
          domain(0, rank),
          cell?.state ?? "",
          cell?.verdict ?? "",
          shown ? text("path", rank) : "",
          why,
        ];
        return element(
          "tr",
          cells.map((one, at) => element("td", one, at === 1 ? "name" : at === 4 ? "path" : "")),
        );
      });
      const caption = found.length > MOST_RESULTS ? `The first ${MOST_RESULTS} found` : "Found";
      results.replaceChildren(table(["rank", "host", "state", "verdict", "slice", "why"], rows, caption));
    }
    drawMap();
    drawMatrix();
  }

  // --- the map as a table ---

  function fillTable() {
    const holder = find("as-table").querySelector("div");
    const rows = hosts.map((host) => {
      const counts = new Map();
      for (const rank of host.ranks) {
        const cell = cellOf(view.step, rank);
        const key = words(cell);
        if (!counts.has(key)) counts.set(key, []);
        counts.get(key).push(rank);
      }
      const parts = [...counts].map(([key, held]) => `${key}: ${folded(held)}`);
      return element("tr", [
        element("td", host.name || "all", "name"),
        element("td", folded(host.ranks)),
        element("td", parts.join("; ")),
      ]);
    });
    holder.replaceChildren(table(["host", "ranks", `at step ${steps[view.step].step}`], rows, "Ranks by host"));
  }

  // --- wiring ---

  function option(value, label) {
    const made = element("option", label);
    made.value = value;
    return made;
  }

  function onMapKey(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const move = moves[event.key];
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (move && view.rank < 0) select(0, view.step, false);
    else if (move) select(Drawing.neighbour(mapLaid.boxes, view.rank, ...move), view.step, false);
    else if (event.key === "Home") select(0, view.step, false);
    else if (event.key === "End") select(world - 1, view.step, false);
    else if (event.key.toLowerCase() === "n") nextOdd();
    else return;
    event.preventDefault();
  }

  function onMatrixKey(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const { fold } = matrixLaid;
    const rank = Math.max(view.rank, 0);
    const last = steps.length - 1;
    const targets = {
      ArrowLeft: [Math.max(rank - fold, 0), view.step],
      ArrowRight: [Math.min(rank + fold, world - 1), view.step],
      ArrowUp: [rank, Math.max(view.step - 1, 0)],
      ArrowDown: [rank, Math.min(view.step + 1, last)],
      Home: [0, view.step],
      End: [world - 1, view.step],
    };
    const target = targets[event.key];
    if (!target) return;
    if (view.rank < 0) select(0, view.step, false);
    else select(target[0], target[1], false);
    event.preventDefault();
  }

  function point(board, event) {
    const area = board.querySelector("canvas").getBoundingClientRect();
    return [event.clientX - area.left, event.clientY - area.top - 3];
  }

  function start() {
    hosts = hostsOf();
    for (const hidden of [map, matrix, find("controls"), find("as-table")]) hidden.hidden = false;
    find("step").append(
      ...steps.map((one, index) => option(index, one.step === data.planned ? `${one.step} (planned)` : one.step)),
    );
    find("step").value = String(view.step);
    find("colour").append(option("state", "by state"), option("group", "by group: the same slice"));
    for (const [index, level] of levels.entries()) find("colour").append(option(`level${index}`, `by ${level.name}`));
    draw();

    find("step").addEventListener("change", (event) => {
      view.step = Number(event.target.value);
      draw();
      if (view.rank >= 0) describe();
      if (find("as-table").open) fillTable();
      search();
    });
    find("colour").addEventListener("change", (event) => {
      view.colour = event.target.value;
      draw();
    });
    find("search").addEventListener("input", search);
    find("controls").addEventListener("submit", (event) => {
      event.preventDefault();
      if (view.matches?.size) select([...view.matches][0], view.step, true);
    });
    find("odd").addEventListener("click", nextOdd);
    find("as-table").addEventListener("toggle", () => find("as-table").open && fillTable());
    map.addEventListener("keydown", onMapKey);
    map.addEventListener("click", (event) => select(Drawing.at(mapLaid.boxes, ...point(map, event)), view.step, false));
    matrix.addEventListener("keydown", onMatrixKey);
    matrix.addEventListener("click", (event) => {
      const [x, y] = point(matrix, event);
      const { left, fold, w, h } = matrixLaid;
      const column = Math.floor((x - left) / w);
      const row = Math.floor(y / (h + 2));
      if (column >= 0 && column < matrixLaid.columns && row >= 0 && row < steps.length)
        select(worstRank(row, column, fold), row, false);
    });
    addEventListener("resize", draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    addEventListener("beforeprint", () => paper(true));
    addEventListener("afterprint", () => paper(false));
    const copy = find("copy");
    if (copy && navigator.clipboard) {
      copy.hidden = false;
      copy.addEventListener("click", () => {
        navigator.clipboard.writeText(find("command").textContent).then(
          () => {
            copy.textContent = "Copied";
          },
          () => {
            copy.textContent = "Select the line and copy it";
          },
        );
      });
    }
  }

  function paper(on) {
    document.documentElement.classList.toggle("paper", on);
    draw();
  }

  start();
})();
