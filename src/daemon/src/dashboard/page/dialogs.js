// Two questions: what to open, and whether something is really to go.

import { post } from "./api.js";
import { button, el, note, setAttribute, setText, usable } from "./dom.js";
import { ceiling, plain, span } from "./text.js";

const ID = "[A-Za-z0-9][A-Za-z0-9._\\-]{0,63}";

// A dialog that is gone when it is closed. The browser keeps the focus inside, closes it with Escape, and gives the focus back.
function dialog(title, ...content) {
  const heading = el("h2", { id: "dialog-title" }, title);
  const node = el("dialog", { "aria-labelledby": "dialog-title" }, heading, ...content);
  node.addEventListener("close", () => node.remove());
  document.body.append(node);
  node.showModal();
  return node;
}

// Resolves to whether the person agreed.
export function confirm({ title, text, yes }) {
  return new Promise((resolve) => {
    let agreed = false;
    const agree = () => {
      agreed = true;
      node.close();
    };
    const cancel = button("Cancel", () => node.close());
    const node = dialog(title, el("p", { id: "dialog-text" }, text), el("div", { class: "row end" }, cancel, button(yes, agree, { class: "danger" })));
    node.setAttribute("aria-describedby", "dialog-text");
    node.addEventListener("close", () => resolve(agreed));
    cancel.focus();
  });
}

export function ceilings(runtime) {
  const parts = [
    runtime.mem_limit ? `${ceiling(runtime.mem_limit)} of memory` : "no memory ceiling",
    runtime.cpus ? `${runtime.cpus} CPUs` : "no CPU ceiling",
    runtime.pids_limit ? `${runtime.pids_limit} processes` : "no process ceiling",
    runtime.network_mode === "none" ? "no network" : "with a network",
  ];
  return parts.join(", ");
}

// Ask what to open, and open it; `opened` gets the answer.
export function create(policy, opened) {
  const choose = el("select", { id: "create-runtime", name: "runtime", "aria-describedby": "create-ceilings" });
  for (const runtime of policy.runtimes) {
    const option = el("option", { value: runtime.alias, selected: runtime.alias === policy.default_runtime }, plain(runtime.alias));
    choose.append(option);
  }
  const described = el("p", { class: "note", id: "create-ceilings", "aria-live": "polite" });
  const describe = () => {
    const runtime = policy.runtimes.find(({ alias }) => alias === choose.value);
    const about = runtime?.description ? `${plain(runtime.description).replace(/\.$/, "")}. ` : "";
    setText(described, runtime ? `${about}It has ${ceilings(runtime)}.` : "");
  };
  choose.addEventListener("change", describe);
  describe();
  const field = (id, label, hint) => [
    el("label", { for: id }, label),
    el("input", { id, pattern: ID, maxLength: 64, autocomplete: "off", spellcheck: false, "aria-describedby": `${id}-hint` }),
    el("p", { class: "note", id: `${id}-hint` }, hint),
  ];
  const failed = el("p", { class: "error", role: "alert" });
  const submit = el("button", { type: "submit", class: "primary" }, "Open it");
  const form = el(
    "form",
    {},
    el("label", { for: "create-runtime" }, "Runtime"),
    choose,
    described,
    el("p", { class: "note" }, "Memory, CPUs, processes and network belong to the runtime: whoever runs the host sets them, and they cannot be chosen here. For others, choose another runtime."),
    ...field("create-id", "Session id (may be empty)", "Letters, digits, dots, dashes and underscores. An id whose files are kept finds them again; without one the service makes one."),
    ...field("create-tenant", "Tenant (may be empty)", "Who the session is counted against."),
    failed,
    el("div", { class: "row end" }, button("Cancel", () => node.close()), submit),
  );
  const node = dialog("Open a session", form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!usable(submit)) return;
    const value = (id) => form.querySelector(`#${id}`).value.trim() || null;
    const request = { runtime: choose.value, session_id: value("create-id"), tenant: value("create-tenant") };
    setText(failed, "");
    setAttribute(submit, "aria-busy", "true");
    const begun = performance.now();
    const clock = setInterval(() => setText(submit, `Opening… ${span((performance.now() - begun) / 1000)}`), 500);
    setText(submit, "Opening…");
    try {
      const { session } = await post("sessions", request);
      node.close();
      opened(session);
    } catch (error) {
      if (node.open) setText(failed, plain(error.message));
      else note(`The session is not open: ${plain(error.message)}`, { failed: true });
    } finally {
      clearInterval(clock);
      setAttribute(submit, "aria-busy", null);
      setText(submit, "Open it");
    }
  });
}
