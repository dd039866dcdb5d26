// Switches charts between the usual values and all of them.
import { Button } from "@/shared/ui/Button";

interface FullRangeProps {
  isFull: boolean;
  onChange: (isFull: boolean) => void;
}

export function FullRange({ isFull, onChange }: FullRangeProps) {
  return (
    <Button
      small
      aria-pressed={isFull}
      title="Values far from the usual ones shape the axis too"
      onClick={() => onChange(!isFull)}
    >
      full range
    </Button>
  );
}
