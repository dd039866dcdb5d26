// Loads the next page of a list when its end is near, or by a button.
import { useEffect, useRef } from "react";
import { Button } from "@/shared/ui/Button";

const NEAR = "800px";

interface MoreRowsProps {
  query: {
    hasNextPage: boolean;
    isFetchingNextPage: boolean;
    isFetchNextPageError: boolean;
    fetchNextPage: () => unknown;
  };
}

export function MoreRows({ query }: MoreRowsProps) {
  const { hasNextPage, isFetchingNextPage: isBusy, isFetchNextPageError, fetchNextPage } = query;
  const end = useRef<HTMLDivElement>(null);
  useEffect(() => {
    // After an error only the button retries: the end of the list stays in view.
    if (isBusy || !hasNextPage || isFetchNextPageError || !end.current) return;
    const observer = new IntersectionObserver(
      ([entry]) => {
        if (entry?.isIntersecting) void fetchNextPage();
      },
      { rootMargin: NEAR },
    );
    observer.observe(end.current);
    return () => observer.disconnect();
  }, [isBusy, hasNextPage, isFetchNextPageError, fetchNextPage]);
  if (!hasNextPage) return null;
  return (
    <div ref={end}>
      <Button small busy={isBusy} onClick={() => void fetchNextPage()}>
        {isBusy ? "Loading…" : "Load more"}
      </Button>
    </div>
  );
}
