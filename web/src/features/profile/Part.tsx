// A part of the profile: its heading, its actions and its content.
import { type ReactNode, useId } from "react";

interface PartProps {
  title: string;
  actions?: ReactNode;
  children: ReactNode;
}

export function Part({ title, actions, children }: PartProps) {
  const id = useId();
  return (
    <section className="profile-part" aria-labelledby={id}>
      <div className="profile-head row">
        <h2 id={id}>{title}</h2>
        {actions}
      </div>
      {children}
    </section>
  );
}
