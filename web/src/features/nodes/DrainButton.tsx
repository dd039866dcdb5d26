// Drains a node, or ends its drain.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useId, useState } from "react";
import { api, ask } from "@/shared/api/client";
import { keys } from "@/shared/api/queries";
import type { NodeView } from "@/shared/api/types";
import { useBarriers } from "@/shared/api/useMay";
import { plural } from "@/shared/format/numbers";
import { command } from "@/shared/format/shell";
import { Button } from "@/shared/ui/Button";
import { ActionDialog } from "@/shared/ui/Dialog";
import { Field } from "@/shared/ui/Field";

type Running = "move" | "finish";

export function DrainButton({ node }: { node: NodeView }) {
  const [isAsking, setIsAsking] = useState(false);
  const barrier = useBarriers()("nodes:write");
  return (
    <>
      <Button small barrier={barrier} className="node-drain" onClick={() => setIsAsking(true)}>
        {labelOf(node)}
      </Button>
      {isAsking && <DrainDialog node={node} onClose={() => setIsAsking(false)} />}
    </>
  );
}

function DrainDialog({ node, onClose }: { node: NodeView; onClose: () => void }) {
  const client = useQueryClient();
  const [running, setRunning] = useState<Running>("move");
  const [typed, setTyped] = useState("");
  const takesReason = !node.drain && (running === "finish" || node.allocations.length === 0);
  const reason = takesReason ? typed.trim() : "";
  const label = labelOf(node);
  const move = useMutation({
    mutationFn: () => {
      const path = { params: { path: { name: node.name } } };
      if (node.drain) return ask(api.POST("/api/v1/nodes/{name}/undrain", path));
      return reason
        ? ask(api.POST("/api/v1/nodes/{name}/cordon", { ...path, body: { reason } }))
        : ask(api.POST("/api/v1/nodes/{name}/drain", { ...path, body: { running } }));
    },
    onSuccess: (changed) => {
      client.setQueryData<NodeView[]>(keys.nodes, (nodes) =>
        nodes?.map((each) => (each.name === changed.name ? changed : each)),
      );
      onClose();
    },
  });
  return (
    <ActionDialog
      title={`${label} ${node.name}?`}
      label={label}
      action={move}
      command={sameCommand(node, running, reason)}
      onClose={onClose}
    >
      {node.drain ? (
        <p>Queued jobs can be placed on it again immediately.</p>
      ) : (
        <Choices node={node} running={running} onChoose={setRunning} />
      )}
      {takesReason && <Reason text={typed} onChange={setTyped} />}
    </ActionDialog>
  );
}

interface ChoicesProps {
  node: NodeView;
  running: Running;
  onChoose: (running: Running) => void;
}

function Choices({ node, running, onChoose }: ChoicesProps) {
  const jobs = node.allocations;
  if (jobs.length === 0) return <p>It runs no job. No new job is placed on it.</p>;
  return (
    <>
      <p>
        No new job is placed on it. It runs{" "}
        {jobs.length === 1 ? "a job" : plural(jobs.length, "job")}:
      </p>
      <ul className="drain-jobs">
        {jobs.map(({ job_id, job_name, allocation }) => (
          <li key={`${job_id} ${allocation.slots[0]}`}>
            <span>{job_name}</span>
            <span className="muted">{plural(allocation.slots.length, "slot")}</span>
          </li>
        ))}
      </ul>
      <fieldset className="drain-choices stack">
        <legend className="visually-hidden">Running jobs</legend>
        <Choice
          isChosen={running === "move"}
          onChoose={() => onChoose("move")}
          name="Save and move"
          help="Each job saves at its next step and moves to free slots or into the queue. This uses no retry. A job on several nodes leaves all of them."
        />
        <Choice
          isChosen={running === "finish"}
          onChoose={() => onChoose("finish")}
          name="Let them finish"
          help="The node stays in use until the last of them has ended."
        />
      </fieldset>
    </>
  );
}

interface ReasonProps {
  text: string;
  onChange: (text: string) => void;
}

/** The reason of a cordon. */
function Reason({ text, onChange }: ReasonProps) {
  const id = useId();
  return (
    <Field htmlFor={id} label="Reason" help="Optional; shown with the node.">
      <input
        id={id}
        className="input"
        aria-describedby={`${id}-said`}
        autoComplete="off"
        maxLength={500}
        value={text}
        onChange={(event) => onChange(event.target.value)}
      />
    </Field>
  );
}

interface ChoiceProps {
  isChosen: boolean;
  onChoose: () => void;
  name: string;
  help: string;
}

function Choice({ isChosen, onChoose, name, help }: ChoiceProps) {
  return (
    <label className="drain-choice">
      <input type="radio" name="running" checked={isChosen} onChange={onChoose} />
      <span>
        <span className="drain-choice-name">{name}</span>
        <span className="muted">{help}</span>
      </span>
    </label>
  );
}

/** Return the label of the button: a drain that lets jobs finish is a cordon. */
function labelOf({ drain }: NodeView): "Drain" | "Undrain" | "Uncordon" {
  if (!drain) return "Drain";
  return drain.running === "finish" ? "Uncordon" : "Undrain";
}

function sameCommand(node: NodeView, running: Running, reason: string): string {
  if (node.drain) return command("nodes", labelOf(node).toLowerCase(), node.name);
  if (reason) return command("nodes", "cordon", node.name, "--reason", reason);
  const how = running === "finish" && node.allocations.length > 0 ? ["--finish"] : [];
  return command("nodes", "drain", node.name, ...how);
}
