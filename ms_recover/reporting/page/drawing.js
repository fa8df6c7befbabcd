"use strict";

/* Boards of cells on a canvas: what a cell looks like, where it lies, which one is at a point or in a direction. */
// biome-ignore lint/correctness/noUnusedVariables: report.js uses it
const Drawing = (() => {
  const SIGNS = { copy: "◆", compose: "◇", unrecoverable: "✕" };

  function palette() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(`--${name}`).trim();
    const colours = {};
    for (const name of ["keep", "copy", "compose", "unrecoverable"]) {
      colours[name] = { fill: read(name), ink: read(`${name}-ink`) };
    }
    return {
      colours,
      absent: read("absent"),
      line: read("dim"),
      text: read("fg"),
      ring: read("ring"),
      dark: matchMedia("(prefers-color-scheme: dark)").matches && !document.documentElement.classList.contains("paper"),
    };
  }

  /* Hues far apart for neighbouring numbers: multiples of the golden angle. */
  function hue(number, dark) {
    return `hsl(${(number * 137.508) % 360} 55% ${dark ? 42 : 68}%)`;
  }

  function canvasOf(board, width, height) {
    let canvas = board.querySelector("canvas");
    if (!canvas) {
      canvas = document.createElement("canvas");
      canvas.setAttribute("aria-hidden", "true");
      board.prepend(canvas);
    }
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.max(1, Math.round(width * ratio));
    canvas.height = Math.max(1, Math.round(height * ratio));
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d", { willReadFrequently: true }); // in memory: no graphics card loses it
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    return pen;
  }

  /* One cell; `look` has fill and verdict, and whether it is hollow (no slice is there), faint, or plain (no sign). */
  function cell(pen, colours, box, look, text) {
    const { x, y, w, h } = box;
    pen.globalAlpha = look.faint ? 0.22 : 1;
    pen.fillStyle = look.fill;
    pen.fillRect(x, y, w, h);
    const size = Math.min(w, h);
    const hollow = look.hollow && size >= 12;
    if (hollow) {
      const edge = size >= 36 ? 5 : 3; // room for number and sign
      pen.fillStyle = colours.absent;
      pen.fillRect(x + edge, y + edge, w - 2 * edge, h - 2 * edge);
    }
    const ink = hollow ? colours.text : colours.colours[look.verdict].ink;
    if (look.verdict !== "keep" && !look.plain && size >= 9) {
      pen.fillStyle = ink;
      pen.font = `${Math.round(size * (text ? 0.38 : 0.8))}px sans-serif`;
      pen.textAlign = "center";
      pen.textBaseline = "middle";
      pen.fillText(SIGNS[look.verdict], x + w / 2, y + h * (text ? 0.74 : 0.55));
    }
    if (text && size >= 24) {
      pen.fillStyle = look.plain ? colours.text : ink;
      pen.font = `600 ${Math.min(13, Math.round(size * 0.36))}px system-ui, sans-serif`;
      pen.textAlign = "center";
      pen.textBaseline = "middle";
      pen.fillText(text, x + w / 2, y + h * (look.verdict !== "keep" && !look.plain ? 0.32 : 0.52));
    }
    pen.globalAlpha = 1;
  }

  /* The boxes of ranks by host: hosts flow like words, ranks of a host stand together. */
  function layMap(hosts, world, width) {
    const size = world <= 64 ? 42 : world <= 256 ? 30 : world <= 1024 ? 18 : world <= 4096 ? 11 : 8;
    const gap = size >= 18 ? 3 : size >= 11 ? 2 : 1;
    const label = hosts.length > 1 && size >= 18 ? 18 : 0;
    const between = size >= 18 ? 16 : size >= 11 ? 7 : 5;
    const boxes = new Array(world);
    const names = [];
    let left = 0;
    let top = 0;
    let deep = 0;
    for (const host of hosts) {
      const columns = columnsOf(host.ranks.length, hosts.length, size, gap, width);
      const rows = Math.ceil(host.ranks.length / columns);
      const wide = Math.max(columns * (size + gap) - gap, label ? Math.min(150, 20 + 7 * host.name.length) : 0);
      if (left > 0 && left + wide > width) {
        left = 0;
        top += deep + between;
        deep = 0;
      }
      if (label) names.push({ text: host.name, x: left, y: top, wide });
      host.ranks.forEach((rank, at) => {
        const x = left + (at % columns) * (size + gap);
        const y = top + label + Math.floor(at / columns) * (size + gap);
        boxes[rank] = { x, y, w: size, h: size };
      });
      deep = Math.max(deep, label + rows * (size + gap) - gap);
      left += wide + between;
    }
    return { boxes, names, height: top + deep, size };
  }

  function columnsOf(count, hosts, size, gap, width) {
    const most = Math.max(1, Math.floor((width + gap) / (size + gap)));
    if (hosts === 1) return most > 8 ? most - (most % 8) : most;
    if (size >= 30 || count <= 2) return Math.min(count, 8, most);
    const square = Math.ceil(Math.sqrt(count));
    for (let columns = square; columns <= 8; columns++) {
      if (count % columns === 0) return Math.min(columns, most);
    }
    return Math.min(8, count, most);
  }

  /* The boxes of the matrix: rows are steps, columns ranks, several to a column where there is no room. */
  function layMatrix(steps, world, width, perHost) {
    const left = 14 + 8 * Math.max(4, ...steps.map((step) => step.step.length));
    const room = Math.max(width - left, 60);
    let fold = Math.ceil(world / room);
    if (fold > 1 && perHost > 1) fold = Math.ceil(fold / perHost) * perHost;
    const columns = Math.ceil(world / fold);
    const w = Math.min(42, Math.floor((room / columns) * 100) / 100);
    const h = steps.length <= 12 ? 26 : steps.length <= 30 ? 18 : 12;
    return { left, fold, columns, w, h, gap: w >= 12 ? 2 : w >= 6 ? 1 : 0, height: steps.length * (h + 2) };
  }

  /* The nearest box in a direction: close in the direction, and in line with the box. */
  function neighbour(boxes, from, dx, dy) {
    const start = boxes[from];
    let best = from;
    let least = Number.POSITIVE_INFINITY;
    boxes.forEach((box, at) => {
      const along = (box.x - start.x) * dx + (box.y - start.y) * dy;
      const aside = Math.abs((box.x - start.x) * dy) + Math.abs((box.y - start.y) * dx);
      if (along > 0.5 && along + 2 * aside < least) {
        least = along + 2 * aside;
        best = at;
      }
    });
    return best;
  }

  function at(boxes, x, y) {
    return boxes.findIndex(
      (box) => box && x >= box.x - 1 && x <= box.x + box.w + 1 && y >= box.y - 1 && y <= box.y + box.h + 1,
    );
  }

  function place(ring, box) {
    ring.hidden = !box;
    if (!box) return;
    ring.style.left = `${box.x - 3}px`;
    ring.style.top = `${box.y + 4}px`;
    ring.style.width = `${box.w + 6}px`;
    ring.style.height = `${box.h + 6}px`;
  }

  return { SIGNS, palette, hue, canvasOf, cell, layMap, layMatrix, neighbour, at, place };
})();
