"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const CHARACTER = 6.4; // pixels
  const MOST_ZOOM = 64;
  const plot = document.getElementById("plot");
  const box = document.getElementById("scroll");
  const tip = document.getElementById("tip");
  const ticks = document.getElementById("ticks");
  if (!plot) return;

  const start = Number(plot.dataset.start);
  const length = Number(plot.dataset.length);
  const steps = plot.dataset.steps.split(" ").map(Number);
  const height = Number(plot.getAttribute("height"));
  let zoom = 1;

  function each(selector, action) {
    document.querySelectorAll(selector).forEach(action);
  }

  function plotWidth() {
    return plot.getBoundingClientRect().width;
  }

  function addTick(name, attributes, text) {
    const element = document.createElementNS(SVG, name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (text) element.textContent = text;
    ticks.appendChild(element);
  }

  function tickName(moment, step) {
    if (step >= 60) return `${Math.round(moment / 60)} min`;
    let decimals = 0;
    while (decimals < 6 && step * 10 ** decimals < 0.999) decimals++;
    if (start + length < 1) return `${(moment * 1e3).toFixed(Math.max(decimals - 3, 0))} ms`;
    return `${moment.toFixed(decimals)} s`;
  }

  function drawTicks(width) {
    const step = steps.find((candidate) => (candidate / length) * width >= 90) || steps[steps.length - 1];
    ticks.textContent = "";
    let number = Math.ceil(start / step);
    for (let drawn = 0; number * step <= start + length && drawn < 2000; number++, drawn++) {
      const x = `${((number * step - start) / length) * 100}%`;
      addTick("line", { x1: x, x2: x, y1: 18, y2: height, class: "t" });
      addTick("text", { x: x, dx: 3, y: 14, class: "dim" }, tickName(number * step, step));
    }
  }

  // A label is hidden unless its box is wide enough.
  function fitLabels(width) {
    each("text.l", (label) => {
      label.classList.toggle("off", label.dataset.w * width < label.textContent.length * CHARACTER + 6);
    });
  }

  // A mark that would hide the one before it moves aside, but not far.
  function placeMarks(width) {
    const taken = {};
    each("g.p", (mark) => {
      const sign = mark.firstChild;
      const y = sign.getAttribute("y");
      const x = (parseFloat(sign.getAttribute("x")) * width) / 100;
      let shift = Math.max((y in taken ? taken[y] : -99) + 16 - x, 0);
      if (shift > 50) shift = 0;
      taken[y] = x + shift + (mark.textContent ? 14 : 0);
      mark.setAttribute("transform", `translate(${shift})`);
    });
  }

  function draw() {
    const width = plotWidth();
    drawTicks(width);
    fitLabels(width);
    placeMarks(width);
  }

  // Zoom so that this share of the drawing's width is so many pixels from the left edge.
  function zoomTo(factor, share, pixels) {
    zoom = Math.min(Math.max(factor, 1), MOST_ZOOM);
    plot.style.width = `${zoom * 100}%`;
    draw();
    box.scrollLeft = share * plotWidth() - pixels;
  }

  function zoomBy(factor, pixels) {
    zoomTo(zoom * factor, (box.scrollLeft + pixels) / plotWidth(), pixels);
  }

  each("button", (button) => {
    button.onclick = () => zoomBy(Number(button.dataset.z), box.clientWidth / 2);
  });

  box.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      zoomBy(event.deltaY < 0 ? 1.25 : 0.8, event.clientX - box.getBoundingClientRect().left);
    },
    { passive: false },
  );

  each("[data-at]", (row) => {
    row.onclick = () => {
      zoomTo(Math.max(zoom, 4), (row.dataset.at - start) / length, box.clientWidth / 2);
      box.scrollIntoView({ block: "nearest" });
    };
  });

  // The titles become tips of our own, which appear at once; a chunk is followed through all devices.
  document.addEventListener("mouseover", (event) => {
    const group = event.target.closest("#plot g:not(.p)");
    const title = group?.querySelector("title");
    plot.classList.remove("follow");
    each(".on", (other) => other.classList.remove("on"));
    if (title) {
      group.dataset.tip = title.textContent;
      title.remove();
    }
    tip.hidden = !group?.dataset.tip;
    if (tip.hidden) return;
    tip.textContent = group.dataset.tip;
    if (!group.dataset.k) return;
    plot.classList.add("follow");
    each(`[data-k="${group.dataset.k}"]`, (other) => other.classList.add("on"));
  });

  document.addEventListener("mousemove", (event) => {
    if (tip.hidden) return;
    tip.style.left = `${Math.max(0, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${Math.max(0, Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8))}px`;
  });

  addEventListener("resize", draw);
  draw();
})();
