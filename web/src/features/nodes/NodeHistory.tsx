// Utilisation of a node in the last hour, read when its card comes into view.
import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { nodeMetricsQuery } from "@/shared/api/queries";
import type { NodeView } from "@/shared/api/types";
import { percent } from "@/shared/format/numbers";
import { utilization } from "./history";
import { LineChart } from "./LineChart";

const HEIGHT = 36;
const REFRESH_MILLISECONDS = 60_000;
const NAMES = "gpu_utilization_ratio,load";

export function NodeHistory({ node }: { node: NodeView }) {
  const element = useRef<HTMLDivElement>(null);
  const isSeen = useSeen(element);
  const found = useQuery({
    ...nodeMetricsQuery(node.name, 1, NAMES),
    enabled: isSeen,
    refetchInterval: isSeen ? REFRESH_MILLISECONDS : false,
  });
  return (
    <div ref={element} className="node-history" aria-busy={found.isLoading}>
      {found.data && <History node={node} metrics={found.data} />}
    </div>
  );
}

function History({
  node,
  metrics,
}: {
  node: NodeView;
  metrics: Parameters<typeof utilization>[0];
}) {
  const line = utilization(metrics, node.hardware.cores);
  const last = line.points.at(-1);
  if (!last) return <p className="muted small">No samples in the last hour</p>;
  const now = Date.now() / 1000;
  const to = Math.max(now, last[0]);
  const title = `${line.label}, last hour`;
  return (
    <>
      <LineChart
        title={title}
        lines={[line]}
        from={to - 3600}
        to={to}
        seconds={metrics.seconds}
        top={1}
        height={HEIGHT}
        isFilled
      />
      <p className="row small muted node-history-words">
        <span className="ellipsis">{title}</span>
        <span className="node-history-now">{percent(last[1])}</span>
      </p>
    </>
  );
}

/** Whether an element has been in view, or nearly: a page of hundreds of nodes reads only these. */
function useSeen(element: React.RefObject<HTMLElement | null>): boolean {
  const [isSeen, setIsSeen] = useState(false);
  useEffect(() => {
    if (!element.current) return;
    const observer = new IntersectionObserver(
      (entries) => setIsSeen(entries.some(({ isIntersecting }) => isIntersecting)),
      { rootMargin: "200px" },
    );
    observer.observe(element.current);
    return () => observer.disconnect();
  }, [element]);
  return isSeen;
}
