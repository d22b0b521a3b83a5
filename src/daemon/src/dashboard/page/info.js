// The facts of a session.

import { ceilings } from "./dialogs.js";
import { el, setText } from "./dom.js";
import { line } from "./lines.js";
import { bytes, count, date, percent, plain, span } from "./text.js";

const TIERS = {
  running: "its processes run",
  frozen: "its processes are held still; the next request lets them go on",
  stopped: "its processes are gone, what it installed is kept; a command starts it again",
  files: "its files are kept; a command starts it anew",
};

export function infoPanel(panel, { id, context, info }) {
  const list = el("dl", { class: "facts" });
  const facts = new Map();
  const memory = line("Memory, last two minutes");
  const cpu = line("CPU, last two minutes");
  const fact = (label, text, more) => {
    let value = facts.get(label);
    if (!value) {
      value = el("dd");
      const content = el("span");
      value.append(content, ...(more ? [more] : []));
      facts.set(label, content);
      list.append(el("dt", {}, label), value);
      value = content;
    }
    setText(value, text);
  };
  panel.append(list);

  return {
    update(seen) {
      if (!seen) return;
      const now = info();
      fact("Session", plain(id));
      if (!now) return fact("State", "not open");
      const used = now.usage;
      const runtime = context.state.policy?.runtimes.find(({ alias }) => alias === now.runtime);
      fact("State", `${now.state}${TIERS[now.tier] ? `: ${TIERS[now.tier]}` : ""}`);
      fact("Runtime", plain(now.runtime));
      fact("Ceilings of its runtime", runtime ? ceilings(runtime) : "–");
      fact("Tenant", now.tenant ? plain(now.tenant) : "none");
      fact("Opened", date(now.created_at));
      fact("Last used", `${date(now.last_activity)}, ${span(now.idle_seconds)} ago`);
      const unmeasured = used && used.memory_bytes === null;
      memory.node.toggleAttribute("hidden", unmeasured);
      fact("Memory", unmeasured ? "not measured here: this host has no memory controller for sandboxes" : used ? `${bytes(used.memory_bytes)}${used.memory_limit_bytes ? ` of ${bytes(used.memory_limit_bytes)}` : ", without a ceiling that this host enforces"}` : "–", memory.node);
      fact("CPU", used ? `${percent(used.cpu_percent)} of a CPU` : "–", cpu.node);
      fact("Processes", used?.pids === undefined || used.pids === null ? "–" : `${used.pids}`);
      if (used?.network) {
        const refused = used.network;
        fact("Refused to its network", `${count(refused.refused_packets, "packet")}, ${count(refused.refused_names, "name")}`);
      }
      const { memory: memoryHistory, cpu: cpuHistory } = context.state.sessions.get(id);
      memory.draw(memoryHistory, used?.memory_limit_bytes, used ? bytes(used.memory_bytes) : "none");
      cpu.draw(cpuHistory, 100, used ? percent(used.cpu_percent) : "none");
      return undefined;
    },
    show() {
      this.update(true);
    },
  };
}
