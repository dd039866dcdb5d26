"""Single sign-on through an OpenID Connect issuer, and logins of devices (docs/sso.md)."""
