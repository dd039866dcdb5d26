// The reason, in an open dialog, why its action is no longer possible.
import type { ReactNode } from "react";
import "./gone.css";

export function GoneNotice({ children }: { children: ReactNode }) {
  return (
    <p className="job-gone" role="status">
      {children}
    </p>
  );
}
