// Takes a node out of use for new jobs, and back.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, ask } from "@/shared/api/client";
import { keys } from "@/shared/api/queries";
import type { NodeView } from "@/shared/api/types";
import { curl } from "@/shared/format/shell";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Dialog } from "@/shared/ui/Dialog";
import { InlineError } from "@/shared/ui/Notice";

export function DrainButton({ node }: { node: NodeView }) {
  const [isAsking, setIsAsking] = useState(false);
  return (
    <>
      <Button small className="node-drain" onClick={() => setIsAsking(true)}>
        {node.draining ? "Undrain" : "Drain"}
      </Button>
      {isAsking && <DrainDialog node={node} onClose={() => setIsAsking(false)} />}
    </>
  );
}

function DrainDialog({ node, onClose }: { node: NodeView; onClose: () => void }) {
  const client = useQueryClient();
  const verb = node.draining ? "undrain" : "drain";
  const move = useMutation({
    mutationFn: () => {
      const path = { params: { path: { name: node.name } } };
      return node.draining
        ? ask(api.POST("/api/v1/nodes/{name}/undrain", path))
        : ask(api.POST("/api/v1/nodes/{name}/drain", path));
    },
    onSuccess: (changed) => {
      client.setQueryData<NodeView[]>(keys.nodes, (nodes) =>
        nodes?.map((each) => (each.name === changed.name ? changed : each)),
      );
      onClose();
    },
  });
  return (
    <Dialog
      title={node.draining ? `Take ${node.name} back into use?` : `Drain ${node.name}?`}
      onClose={onClose}
      footer={
        <>
          <Button onClick={onClose}>Leave it</Button>
          <Button look="primary" busy={move.isPending} onClick={() => move.mutate()}>
            {node.draining ? "Undrain" : "Drain"}
          </Button>
        </>
      }
    >
      <p>
        {node.draining
          ? "Queued jobs may be placed on it again at once."
          : "What runs on it goes on; nothing new is placed on it. Queued jobs wait for other nodes."}
      </p>
      <CommandLine command={curl("POST", `/nodes/${node.name}/${verb}`)} label="Does the same" />
      {move.isError && <InlineError error={move.error} />}
    </Dialog>
  );
}
