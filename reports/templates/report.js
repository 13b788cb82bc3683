
"use strict";
(() => {
  const list = document.getElementById("list");
  if (!list) { return; }
  const byId = (id) => document.getElementById(id);
  const articles = [...list.children];
  const controls = ["query", "rule", "severity", "source", "sink", "order"].map(byId);
  const [query, rule, severity, source, sink, order] = controls;
  const step = Number(list.dataset.shownAtOnce);
  const entries = articles.map((article, place) => ({
    article, place,
    text: article.textContent.toLowerCase(),
    rules: article.dataset.rules.split(" "),
    severity: article.dataset.severity,
    sources: article.dataset.sources.split("\n"),
    sink: article.dataset.sink,
    time: article.dataset.time,
  }));
  let limit = step;

  const offer = (select, values) => {
    for (const value of [...new Set(values)].filter(Boolean).sort()) {
      select.add(new Option(value, value));
    }
  };
  offer(rule, entries.flatMap((entry) => entry.rules));
  offer(severity, entries.map((entry) => entry.severity));
  offer(source, entries.flatMap((entry) => entry.sources));
  offer(sink, entries.map((entry) => entry.sink));

  const compare = {
    surest: (a, b) => a.place - b.place,
    time: (a, b) => (a.time || "~").localeCompare(b.time || "~") || a.place - b.place,
    tenant: (a, b) => a.sink.localeCompare(b.sink) || a.place - b.place,
  };
  const matches = (entry) => {
    const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    return words.every((word) => entry.text.includes(word))
      && (!rule.value || entry.rules.includes(rule.value))
      && (!severity.value || entry.severity === severity.value)
      && (!source.value || entry.sources.includes(source.value))
      && (!sink.value || entry.sink === sink.value);
  };
  const show = () => {
    const found = entries.filter(matches);
    const shown = new Set(found.slice().sort(compare[order.value]).slice(0, limit));
    for (const entry of entries) { entry.article.hidden = !shown.has(entry); }
    document.querySelector(".count").textContent =
      `${shown.size} of ${entries.length} answers shown`
      + (found.length < entries.length ? `, ${found.length} match` : "");
    byId("none").hidden = found.length > 0;
    byId("more-line").hidden = shown.size >= found.length;
    byId("more").textContent = `Show ${Math.min(step, found.length - shown.size)} more`;
  };
  const sort = () => {
    list.append(...entries.slice().sort(compare[order.value]).map((entry) => entry.article));
  };
  const reset = () => {
    for (const control of controls) {
      if (control === order) { continue; }
      control.value = "";
    }
    limit = step;
  };
  const follow = () => {
    const target = location.hash && byId(decodeURIComponent(location.hash.slice(1)));
    const article = target && target.closest("#list > article");
    if (!article) { return; }
    if (article.hidden) {
      reset();
      const ordered = entries.slice().sort(compare[order.value]);
      limit = Math.max(step, ordered.findIndex((entry) => entry.article === article) + 1);
      show();
    }
    target.scrollIntoView();
    article.focus({ preventScroll: true });
  };

  let waiting = 0;
  query.addEventListener("input", () => {
    limit = step;
    clearTimeout(waiting);
    if (entries.length <= 500) { show(); } else { waiting = setTimeout(show, 150); }
  });
  for (const select of [rule, severity, source, sink]) {
    select.addEventListener("change", () => { limit = step; show(); });
  }
  order.addEventListener("change", () => { limit = step; sort(); show(); });
  byId("more").addEventListener("click", () => {
    const before = new Set(entries.filter((entry) => !entry.article.hidden));
    limit += step;
    show();
    const fresh = [...list.children].find((article) => !article.hidden
      && ![...before].some((entry) => entry.article === article));
    if (fresh) { fresh.focus(); }
  });
  byId("reset").addEventListener("click", () => { reset(); show(); query.focus(); });
  document.addEventListener("keydown", (event) => {
    const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
    if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      query.focus();
    }
    if (event.key === "Escape" && document.activeElement === query) {
      query.value = "";
      limit = step;
      show();
    }
  });
  addEventListener("hashchange", follow);
  document.querySelector(".tools").hidden = false;
  show();
  follow();
})();
