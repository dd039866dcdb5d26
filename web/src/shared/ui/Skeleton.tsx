// Grey lines as a placeholder for loading text, of the same size.
import "./Skeleton.css";

/** `width` is a CSS width such as `12ch`. */
export function Skeleton({ width = "100%" }: { width?: string }) {
  return <span className="skeleton" style={{ width }} aria-hidden="true" />;
}

export function SkeletonLines({ lines = 6 }: { lines?: number }) {
  return (
    <div className="skeleton-lines" role="status" aria-label="Loading">
      {Array.from({ length: lines }, (_, line) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: the lines never change places
        <Skeleton key={line} width={`${90 - ((line * 37) % 50)}%`} />
      ))}
    </div>
  );
}
