// Loads the next page when the end of the list is near, or by its button.
import { useEffect, useRef } from "react";
import { Button } from "@/shared/ui/Button";

const NEAR = "800px";

export function LoadMore({ isBusy, onMore }: { isBusy: boolean; onMore: () => void }) {
  const end = useRef<HTMLDivElement>(null);
  const more = useRef(onMore);
  useEffect(() => {
    more.current = onMore;
  });
  useEffect(() => {
    if (isBusy || !end.current) return;
    const observer = new IntersectionObserver(
      ([entry]) => {
        if (entry?.isIntersecting) more.current();
      },
      { rootMargin: NEAR },
    );
    observer.observe(end.current);
    return () => observer.disconnect();
  }, [isBusy]);
  return (
    <div ref={end}>
      <Button small busy={isBusy} onClick={onMore}>
        {isBusy ? "Loading…" : "Load more"}
      </Button>
    </div>
  );
}
