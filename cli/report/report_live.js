/* `ravel report --serve`: what is new is fetched when there is something, and drawn in place. */
const PIECES = ["head", "notes", "figures", "timelines"], MOST_POINTS = 3000;
const pad = (list, n) => { while (list.length < n) list.push(null); return list; };
function extend(table, more) { /* rows of one table behind those of another */
  const before = table.step.length, all = before + more.step.length;
  table.rows = more.rows;
  table.step.push(...more.step);
  for (const name in more.series) {
    const s = table.series[name] ||= { v: [] };
    for (const key of ["v", "lo", "hi"]) if (s[key]) pad(s[key], before).push(...more.series[name].v);
  }
  for (const name in table.series) for (const key of ["v", "lo", "hi"]) if (table.series[name][key]) pad(table.series[name][key], all);
}
function take(news) {
  for (const id of PIECES) $(id).replaceChildren(document.createRange().createContextualFragment(news[id]));
  news.runs.forEach((more, i) => {
    const run = RUNS[i];
    extend(run.metrics, more.metrics);
    run.shares = more.shares; run.answers = more.answers;
    run.samples.push(...more.samples);
    if (run.ranks && more.ranks) { run.ranks.step.push(...more.ranks.step); run.ranks.busy.forEach((row, k) => row.push(...more.ranks.busy[k] || [])); }
  });
}
async function reread() { /* the page again: a run that was resumed, or one that is thinned anew */
  const page = new DOMParser().parseFromString(await (await fetch(".", { cache: "no-store" })).text(), "text/html"), data = page.getElementById("data");
  if (!data) return;
  for (const id of PIECES) $(id).replaceChildren(...page.getElementById(id).childNodes);
  DATA = JSON.parse(data.textContent); RUNS = DATA.runs;
}
async function follow(stamp) {
  const live = $("live");
  live.hidden = false;
  try {
    const [now, ...words] = (await (await fetch("stamp", { cache: "no-store" })).text()).trim().split(" ");
    if (stamp && now !== stamp) {
      const open = $("all") && $("all").open, few = RUNS.every(run => !run.refit && run.metrics.step.length < MOST_POINTS);
      const news = few ? await (await fetch("news?" + RUNS.map(run => run.metrics.rows).join(), { cache: "no-store" })).json() : { whole: true };
      if (news.whole) await reread(); else take(news);
      if ($("all")) $("all").open = open;
      render();
      document.body.dataset.drawn = Number(document.body.dataset.drawn || 0) + 1;
    }
    stamp = now; live.textContent = words.join(" "); live.classList.toggle("over", live.textContent === "ended"); live.classList.remove("lost");
  } catch (e) { live.textContent = "server gone"; live.classList.add("lost"); }
  setTimeout(() => follow(stamp), 2000);
}
if ($("live")) follow("");
