// One node: its hardware, its problems, and its charts.
import { useQuery } from "@tanstack/react-query";
import { Link, useParams } from "react-router";
import { nodeMetricsQuery, nodesQuery } from "@/shared/api/queries";
import type { NodeMetrics, NodeView } from "@/shared/api/types";
import { bytes, count, percent, short } from "@/shared/format/numbers";
import { age } from "@/shared/format/time";
import { cx } from "@/shared/ui/cx";
import { Choice } from "@/shared/ui/Field";
import { Absent, EmptyState } from "@/shared/ui/Notice";
import { NODE } from "@/shared/url/pages";
import { usePageParams } from "@/shared/url/params";
import { type Line, linesOf } from "./history";
import { COLOURS, LineChart } from "./LineChart";
import { NodeCard } from "./NodeCard";
import "./nodes.css";

const REFRESH_MILLISECONDS = 15_000;
const HEIGHT = 120;
const SPANS = [
  [1, "last hour"],
  [6, "last 6 hours"],
  [24, "last day"],
  [336, "last 14 days"],
] as const;

type Hardware = NodeView["hardware"];

interface Panel {
  name: string;
  title: string;
  format: (value: number) => string;
  /** Value at the top of the chart; by default the highest one. */
  top?: (hardware: Hardware) => number;
  /** Whether it counts errors: without errors it has no chart. */
  isErrors?: boolean;
}

const PANELS: readonly Panel[] = [
  { name: "gpu_utilization_ratio", title: "GPU utilisation", format: percent, top: () => 1 },
  {
    name: "gpu_memory_used_bytes",
    title: "GPU memory used",
    format: bytes,
    top: (hardware) => hardware.device_memory_bytes,
  },
  { name: "gpu_power_watts", title: "Power", format: (value) => `${short(value)} W` },
  {
    name: "gpu_temperature_celsius",
    title: "Temperature",
    format: (value) => `${short(value)} °C`,
  },
  { name: "gpu_sm_clock_hertz", title: "Clock", format: (value) => `${count(value / 1e6)} MHz` },
  { name: "gpu_throttled", title: "Clocks lowered", format: percent, top: () => 1 },
  { name: "gpu_nvlink_errors", title: "NVLink errors", format: count, isErrors: true },
  { name: "gpu_pcie_replays", title: "PCIe replays", format: count, isErrors: true },
  { name: "gpu_ecc_corrected", title: "Corrected memory errors", format: count, isErrors: true },
  {
    name: "gpu_ecc_uncorrected",
    title: "Uncorrected memory errors",
    format: count,
    isErrors: true,
  },
  { name: "load", title: "Load of the host", format: short },
  {
    name: "memory_used_bytes",
    title: "Memory used of the host",
    format: bytes,
    top: ({ memory_bytes }) => memory_bytes,
  },
  { name: "disk_free_bytes", title: "Free space of storage", format: bytes },
];

export function NodePage() {
  const { node: name = "" } = useParams();
  const [{ hours }, change] = usePageParams(NODE);
  const nodes = useQuery({ ...nodesQuery, refetchInterval: REFRESH_MILLISECONDS });
  const names = PANELS.map((panel) => panel.name).join(",");
  const metrics = useQuery({
    ...nodeMetricsQuery(name, hours, names),
    refetchInterval: REFRESH_MILLISECONDS,
  });
  const node = nodes.data?.find((each) => each.name === name);
  if (!nodes.data) return <Absent query={nodes} lines={8} />;
  if (!node) {
    return (
      <EmptyState title={`No node has the name ${name}`}>
        <Link to="/nodes">All nodes</Link>
      </EmptyState>
    );
  }
  return (
    <div className="stack">
      <title>{`${name} · Trainyard`}</title>
      <p className="small">
        <Link to="/nodes">All nodes</Link>
      </p>
      <ul className="nodes nodes-one">
        <NodeCard node={node} isWhole />
      </ul>
      <header className="row node-charts-head">
        <h2>History</h2>
        <Choice
          label="Time"
          value={hours}
          onChange={(value) => change({ hours: value })}
          options={SPANS}
        />
      </header>
      {metrics.data ? (
        <Panels metrics={metrics.data} hardware={node.hardware} hours={hours} />
      ) : (
        <Absent query={metrics} lines={8} />
      )}
    </div>
  );
}

interface PanelsProps {
  metrics: NodeMetrics;
  hardware: Hardware;
  hours: number;
}

function Panels({ metrics, hardware, hours }: PanelsProps) {
  const measured = PANELS.map((panel) => {
    const lines = linesOf(metrics, panel.name);
    return { panel, lines, top: topOf(panel, lines, hardware) };
  }).filter(({ lines }) => lines.length > 0);
  if (measured.length === 0) return <EmptyState title="No samples in this time" />;
  const isQuiet = ({ panel, top }: (typeof measured)[number]) => panel.isErrors && top === 0;
  const quiet = measured.filter(isQuiet).map(({ panel }) => panel.title);
  const to = Date.now() / 1000;
  return (
    <>
      <div className="node-charts">
        {measured
          .filter((each) => !isQuiet(each))
          .map(({ panel, lines, top }) => (
            <figure key={panel.name} className="panel node-chart">
              <figcaption className="row">
                <span className="ellipsis">{panel.title}</span>
                <span className="muted small">0 to {panel.format(top)}</span>
              </figcaption>
              <LineChart
                title={`${panel.title}: ${lines.map((line) => reading(panel, line)).join(", ")}`}
                lines={lines}
                from={to - hours * 3600}
                to={to}
                seconds={metrics.seconds}
                top={top || 1}
                height={HEIGHT}
              />
              <p className="row small muted node-chart-ends">
                <span>{age(hours * 3600)} ago</span>
                <span>now</span>
              </p>
              <ul className="node-legend small">
                {lines.map((line) => (
                  <li key={line.label}>
                    <span className={markOf(line)} />
                    {reading(panel, line)}
                  </li>
                ))}
              </ul>
            </figure>
          ))}
      </div>
      {quiet.length > 0 && <p className="muted small">Zero in this time: {quiet.join(", ")}</p>}
    </>
  );
}

function topOf({ top }: Panel, lines: readonly Line[], hardware: Hardware): number {
  const values = lines.flatMap(({ points }) => points.map(([, value]) => value));
  return Math.max(top?.(hardware) ?? 0, ...values);
}

/** Return the class of a line's mark in the legend: its colour, hollow once colours repeat. */
function markOf({ place }: Line): string {
  const colour = (place % COLOURS) + 1;
  return place < COLOURS
    ? `legend-mark part-${colour}`
    : cx("legend-mark line-mark", `line-${colour}`);
}

/** The newest value of a line. */
function reading({ format }: Panel, { label, points }: Line): string {
  const last = points.at(-1);
  return last ? `${label} ${format(last[1])}` : label;
}
