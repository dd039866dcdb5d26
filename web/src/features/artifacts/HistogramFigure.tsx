// The histograms of one name: the chosen one as bars, with a slider over steps.
import { count, metric, plural } from "@/shared/format/numbers";
import { StepSlider, useChosen } from "./StepSlider";
import { apart, barsOf, type Sequence } from "./sequences";

export function HistogramFigure({ name, items }: Sequence) {
  const [chosen, choose] = useChosen(items);
  const histogram = chosen?.histogram;
  if (!chosen || !histogram) return null;
  const { edges, counts } = histogram;
  const total = counts.reduce((sum, each) => sum + each, 0);
  const others = apart(histogram);
  return (
    <figure className="artifact panel">
      <figcaption className="artifact-title" title={name}>
        {name}
      </figcaption>
      <svg
        className="artifact-bars"
        viewBox="0 0 1 1"
        preserveAspectRatio="none"
        role="img"
        aria-label={`${plural(total, "value")} from ${metric(edges[0])} to ${metric(edges.at(-1))}`}
      >
        {barsOf(histogram).map(({ x, width, height }) => (
          <rect key={x} x={x} y={1 - height} width={width * 0.92} height={height} />
        ))}
      </svg>
      <div className="artifact-ends row small muted">
        <span>{edges.length > 0 && metric(edges[0])}</span>
        <span>{edges.length > 0 && metric(edges.at(-1))}</span>
      </div>
      <StepSlider name={name} items={items} chosen={chosen} onChoose={choose} />
      <p className="artifact-caption small">
        {count(total)} values{others && <span className="tone-bad">, {others}</span>}
      </p>
    </figure>
  );
}
