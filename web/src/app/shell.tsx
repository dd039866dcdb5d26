// The frame of every page after the login: navigation, connection, theme, logout.

import { useIsFetching, useQuery, useQueryClient } from "@tanstack/react-query";
import { type RefObject, useEffect, useRef, useState } from "react";
import { Navigate, NavLink, Outlet, useLocation } from "react-router";
import { SessionMenu } from "@/features/session/SessionMenu";
import { keys, sessionQuery } from "@/shared/api/queries";
import { callerOf, useMay } from "@/shared/api/useMay";
import { Feed } from "@/shared/stream/feed";
import { stream } from "@/shared/stream/stream";
import { useStreamStatus } from "@/shared/stream/useStream";
import { focusPage } from "@/shared/ui/Button";
import { ErrorState } from "@/shared/ui/Notice";
import { loginPath } from "@/shared/url/pages";
import { ThemeToggle } from "./ThemeToggle";
import "./shell.css";

export function Shell() {
  const session = useQuery(sessionQuery);
  const location = useLocation();
  if (session.isError && session.data === undefined) {
    return <ErrorState error={session.error} onRetry={() => void session.refetch()} />;
  }
  if (session.isPending) return null;
  if (session.data === null) {
    const next = location.pathname + location.search + location.hash;
    return <Navigate to={loginPath({ next })} replace />;
  }
  return <Frame name={callerOf(session.data)} />;
}

function Frame({ name }: { name: string }) {
  const seesTokens = useMay("tokens:admin");
  const seesUsers = useMay("users:admin");
  const seesAudit = useMay("audit:read");
  const seesJobs = useMay("jobs:read");
  useFeed(seesJobs);
  useFocusOfPage();
  const nav = useShownPage();
  return (
    <>
      <a className="skip-link" href="#main">
        Skip to the page
      </a>
      <header className="bar">
        <NavLink to="/jobs" className="brand row">
          <img src="/mark.svg" width="24" height="24" alt="" />
          <span>Trainyard</span>
        </NavLink>
        <nav className="nav" aria-label="Pages" ref={nav}>
          <NavLink to="/jobs">Jobs</NavLink>
          <NavLink to="/compare">Compare</NavLink>
          <NavLink to="/queue">Queue</NavLink>
          <NavLink to="/nodes">Nodes</NavLink>
          <NavLink to="/sources">Sources</NavLink>
          <NavLink to="/projects">Projects</NavLink>
          <NavLink to="/goodput">Goodput</NavLink>
          {seesTokens && <NavLink to="/tokens">Tokens</NavLink>}
          {seesUsers && <NavLink to="/users">Users</NavLink>}
          {seesAudit && <NavLink to="/audit">Audit</NavLink>}
        </nav>
        <div className="bar-end">
          {seesJobs && <Connection />}
          <ThemeToggle />
          <SessionMenu name={name} />
        </div>
      </header>
      <main id="main" className="page" tabIndex={-1}>
        <Outlet />
      </main>
    </>
  );
}

/** Move the focus to a newly opened page: Tab continues there, not at the top. */
function useFocusOfPage(): void {
  const { pathname } = useLocation();
  const shown = useRef(pathname);
  useEffect(() => {
    if (shown.current === pathname) return;
    shown.current = pathname;
    if (document.activeElement !== document.body) return;
    focusPage();
  }, [pathname]);
}

/** Scroll the name of the open page into view where the navigation is too narrow for all names. */
function useShownPage(): RefObject<HTMLElement | null> {
  const nav = useRef<HTMLElement>(null);
  const { pathname } = useLocation();
  // biome-ignore lint/correctness/useExhaustiveDependencies: another page has another active name
  useEffect(() => {
    const active = nav.current?.querySelector<HTMLElement>("a.active");
    if (!nav.current || !active) return;
    const middle = active.offsetLeft - nav.current.offsetLeft + active.offsetWidth / 2;
    nav.current.scrollLeft = middle - nav.current.clientWidth / 2;
  }, [pathname]);
  return nav;
}

/** Apply live events to the query cache while a session may read them. */
function useFeed(isAllowed: boolean): void {
  const client = useQueryClient();
  useEffect(() => {
    if (isAllowed) return stream.subscribe(new Feed(client));
  }, [client, isAllowed]);
}

const SILENT_MILLISECONDS = 2_000;
const SLOW_MILLISECONDS = 4_000;

/** Shows that live updates have stopped or that a page waits for data, after a short delay. */
function Connection() {
  const isLost = useLasting(useStreamStatus() !== "live", SILENT_MILLISECONDS);
  const client = useQueryClient();
  // The stream of a person without any role is refused.
  useEffect(() => {
    if (isLost) void client.invalidateQueries({ queryKey: keys.session });
  }, [isLost, client]);
  const isPending = useIsFetching({ predicate: ({ state }) => state.data === undefined }) > 0;
  const isSlow = useLasting(isPending, SLOW_MILLISECONDS);
  const words = isLost ? "Reconnecting…" : isSlow ? "Waiting for the server…" : null;
  return (
    <span className={words ? "connection connection-lost" : "connection"} role="status">
      {words ?? <span className="visually-hidden">Live</span>}
    </span>
  );
}

/** Return whether a condition has held for longer than some milliseconds. */
function useLasting(isSo: boolean, milliseconds: number): boolean {
  const [isLong, setIsLong] = useState(false);
  useEffect(() => {
    setIsLong(false);
    if (!isSo) return;
    const timer = setTimeout(() => setIsLong(true), milliseconds);
    return () => clearTimeout(timer);
  }, [isSo, milliseconds]);
  return isSo && isLong;
}
