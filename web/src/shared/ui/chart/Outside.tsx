// Shows in a chart's caption how far values outside its axis reach.
import type { Frame } from "./frame";

interface OutsideProps {
  frame: Frame;
  format: (value: number) => string;
}

export function Outside({ frame: { above, below }, format }: OutsideProps) {
  const ends = [
    ...(above === null ? [] : [`▲ to ${format(above)}`]),
    ...(below === null ? [] : [`▼ to ${format(below)}`]),
  ];
  if (ends.length === 0) return null;
  return (
    <span
      className="chart-outside small tone-bad"
      title="Values outside the axis; Full range shows them"
    >
      {ends.join(" ")}
    </span>
  );
}
