// A real OpenID Connect issuer for the tests: oidc-provider in memory, with a page to log in.
// `node issuer.mjs CLIENT_BASE` prints its URL. Persons come from PUT /control/persons/:sub.
import { createServer } from "node:http";
import { Provider } from "oidc-provider";

// Without it, browsers ask for /favicon.ico.
const ICON = '<link rel="icon" href="data:,">';
const base = process.argv[2];
const persons = new Map();
const logoutTokens = [];
let isDown = false;

const server = createServer((request, response) => handle(request, response));
await new Promise((done) => server.listen(0, "127.0.0.1", done));
const url = `http://127.0.0.1:${server.address().port}`;

const provider = new Provider(url, {
  clients: [
    {
      client_id: "trainyard",
      client_secret: "a secret: with/special+characters",
      redirect_uris: [`${base}/api/v1/auth/oidc/callback`],
      post_logout_redirect_uris: [`${base}/login`],
      grant_types: ["authorization_code", "refresh_token"],
      backchannel_logout_uri: `${url}/control/logout-tokens`,
      backchannel_logout_session_required: true,
    },
  ],
  claims: {
    openid: ["sub"],
    profile: ["preferred_username", "name"],
    email: ["email", "email_verified"],
    groups: ["groups"],
  },
  scopes: ["openid", "offline_access", "profile", "email", "groups"],
  features: {
    devInteractions: { enabled: false },
    backchannelLogout: { enabled: true },
    rpInitiatedLogout: {
      enabled: true,
      logoutSource: (context, form) => {
        context.body = `<!doctype html>${ICON}<title>Log out</title>${form}<button form="op.logoutForm" name="logout" value="yes">Log out</button>`;
      },
    },
  },
  interactions: { url: (_, { uid }) => `/interaction/${uid}` },
  cookies: { keys: ["a key of the tests"] },
  pkce: { required: () => true },
  rotateRefreshToken: true,
  ttl: { IdToken: 10 * 86_400 }, // tests shift the clock of the server
  findAccount: (_, sub) =>
    persons.has(sub)
      ? { accountId: sub, claims: () => ({ sub, ...persons.get(sub) }) }
      : undefined,
});
const issue = provider.callback();

async function handle(request, response) {
  const { pathname, searchParams } = new URL(request.url, url);
  if (pathname.startsWith("/control/")) return control(request, response, pathname);
  if (isDown) return request.socket.destroy();
  if (!pathname.startsWith("/interaction/")) return issue(request, response);
  const person = searchParams.get("person");
  if (person === null) return askPerson(response, pathname);
  if (person === "") {
    const result = { error: "access_denied", error_description: "<b>cancelled</b>" };
    return provider.interactionFinished(request, response, result);
  }
  const { prompt, params, grantId } = await provider.interactionDetails(request, response);
  const grant =
    (grantId && (await provider.Grant.find(grantId))) ||
    new provider.Grant({ accountId: person, clientId: params.client_id });
  grant.addOIDCScope(params.scope);
  const result = { login: { accountId: person }, consent: { grantId: await grant.save() } };
  if (prompt.name !== "login") delete result.login;
  return provider.interactionFinished(request, response, result, { mergeWithLastSubmission: true });
}

function askPerson(response, pathname) {
  const links = [...persons.keys()].map((sub) => `<a href="${pathname}?person=${sub}">${sub}</a>`);
  response.setHeader("content-type", "text/html");
  response.end(`<!doctype html>${ICON}<title>Issuer</title><h1>Who are you?</h1>${links.join(" ")}`);
}

async function control(request, response, pathname) {
  const parts = [];
  for await (const part of request) parts.push(part);
  const body = Buffer.concat(parts).toString();
  const [, , kind, name] = pathname.split("/");
  if (kind === "logout-tokens" && request.method === "POST") {
    logoutTokens.push(new URLSearchParams(body).get("logout_token"));
  } else if (kind === "persons" && request.method === "PUT") {
    persons.set(name, JSON.parse(body));
  } else if (kind === "persons") {
    persons.delete(name);
  } else if (kind === "down") {
    isDown = JSON.parse(body);
  }
  response.setHeader("content-type", "application/json");
  response.end(JSON.stringify(logoutTokens));
}

process.stdout.write(`${url}\n`);
