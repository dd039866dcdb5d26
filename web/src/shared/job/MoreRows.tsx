// The button under a list that came in pages.
import { Button } from "@/shared/ui/Button";

interface MoreRowsProps {
  query: { hasNextPage: boolean; isFetchingNextPage: boolean; fetchNextPage: () => unknown };
  words: string;
}

export function MoreRows({ query, words }: MoreRowsProps) {
  if (!query.hasNextPage) return null;
  return (
    <div>
      <Button busy={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
        {words}
      </Button>
    </div>
  );
}
