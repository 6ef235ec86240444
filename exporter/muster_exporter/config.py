"""exporter.toml: what the exporter may reach, and with which keys."""

import os
import pwd
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit


class ConfigError(Exception):
    """What is wrong with the file, with its place and the remedy."""


@dataclass
class Mail:
    smtp: str = ""  # HOST or HOST:PORT
    starttls: bool = True
    user: str = ""
    password_file: str = ""
    sendmail: str = ""  # a program that takes a message on its standard input, in place of smtp
    sender: str = ""
    domains: list[str] = field(default_factory=list)  # that anybody's jobs may write to


@dataclass
class Config:
    data_dir: Path
    muster: str = "muster"
    user: str = ""  # whose own jobs are trusted with any host and directory
    poll_s: float = 2.0
    readers: int = 16  # musterd serves 256 to all
    spool_bytes: int = 4 << 30
    allowed_hosts: list[str] = field(default_factory=list)  # servers, as server() gives them
    tensorboard_dir: Path | None = None
    wandb_projects: list[str] = field(
        default_factory=list
    )  # of others' jobs; ENTITY/* is all of one
    wandb_python: str = ""  # of an environment that has wandb
    wandb_url: str = ""  # of a server of one's own
    keys: dict[str, str] = field(default_factory=dict)  # files with keys, by server; and `wandb`
    webhooks: dict[str, str] = field(default_factory=dict)  # files with URLs, by name
    mail: Mail = field(default_factory=Mail)


_TYPES = {
    "muster": str,
    "user": str,
    "poll_s": (int, float),
    "readers": int,
    "spool_bytes": int,
    "allowed_hosts": list,
    "wandb_projects": list,
    "wandb_python": str,
    "wandb_url": str,
    "keys": dict,
    "webhooks": dict,
}


def read(path: Path) -> Config:
    try:
        given = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return from_dict(given, str(path))


def from_dict(given: dict, where: str) -> Config:
    given = dict(given)
    if not isinstance(given.get("data_dir"), str):
        raise ConfigError(f'{where}: data_dir is missing; write data_dir = "/var/lib/…"')
    config = Config(Path(given.pop("data_dir")).absolute(), user=_user())
    tensorboard = given.pop("tensorboard_dir", None)
    config.tensorboard_dir = Path(tensorboard or config.data_dir / "tensorboard").absolute()
    mail = given.pop("mail", {})
    for name, value in given.items():
        if name not in _TYPES:
            raise ConfigError(f"{where}: {name}: no such setting; docs/tracking.md has them")
        if not isinstance(value, _TYPES[name]) or isinstance(value, bool):
            raise ConfigError(f"{where}: {name}: is of the wrong type")
        if isinstance(value, (list, dict)) and not all(map(_is_text, _parts(value))):
            raise ConfigError(f"{where}: {name}: must hold texts alone")
        setattr(config, name, value)
    config.allowed_hosts = [_named(host, where) for host in config.allowed_hosts]
    config.keys = {
        name if name == "wandb" else _named(name, where): file for name, file in config.keys.items()
    }
    if config.readers < 1 or config.poll_s <= 0:
        raise ConfigError(f"{where}: readers and poll_s must be above 0")
    config.mail = _mail(mail, where)
    return config


def _user() -> str:
    """Who runs this, whatever the environment says."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _parts(value: list | dict) -> list:
    return [*value, *value.values()] if isinstance(value, dict) else value


def _is_text(value) -> bool:
    return isinstance(value, str)


def server(url: str) -> str:
    """SCHEME://HOST:PORT of a URL; ValueError: it is none of http or https."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ValueError("no http or https URL of a host")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{host}:{port}"


def _named(name: str, where: str) -> str:
    """A server as the file names it: HOST is https on 443, all else is written out."""
    try:
        if re.fullmatch(r"[^/:@?#]+|\[[^/@?#]+\]", name):
            return server(f"https://{name}")
        if re.fullmatch(r"https?://[^/?#]+/?", name):
            return server(name)
    except ValueError:
        pass
    raise ConfigError(
        f"{where}: {name}: write HOST, which is https on port 443, or all of it, as https://HOST:PORT or http://HOST:PORT"
    )


def _mail(given: dict, where: str) -> Mail:
    mail = Mail()
    for name, value in given.items():
        if not hasattr(mail, name) or not isinstance(value, type(getattr(mail, name))):
            raise ConfigError(f"{where}: mail.{name}: no such setting, or of the wrong type")
        setattr(mail, name, value)
    if given and not mail.sender:
        raise ConfigError(f"{where}: mail.sender is missing: the address that mails come from")
    if given and bool(mail.smtp) == bool(mail.sendmail):
        raise ConfigError(f"{where}: mail: write smtp or sendmail, one of both")
    return mail


def secret(path: str) -> str:
    """What a file with a key or a URL holds."""
    return Path(path).read_text().strip()


class Reach:
    """What the exporter goes to for whom. It runs in the operator's network, with keys: a job's file must not lead it anywhere (decision 127)."""

    def __init__(self, config: Config):
        self._config = config

    def why_not_url(self, url: str, owner: str) -> str:
        """Empty: it may be opened for a job of `owner`."""
        try:
            named = server(url)
        except ValueError:
            return "no http or https URL of a host"
        if owner == self._config.user or named in self._config.allowed_hosts:
            return ""
        return f"{named} is not among allowed_hosts of the exporter"

    def why_not_project(self, project: str, owner: str) -> str:
        """Of W&B."""
        allowed = self._config.wandb_projects
        entity = project.rpartition("/")[0]
        if owner == self._config.user or project in allowed or f"{entity}/*" in allowed:
            return ""
        return f"{project} is not among wandb_projects of the exporter"

    def why_not_mail(self, address: str, owner: str) -> str:
        if not self._config.mail.sender:
            return "the exporter has no [mail]"
        domain = address.rpartition("@")[2].lower()
        if owner == self._config.user or domain in map(str.lower, self._config.mail.domains):
            return ""
        return f"{domain} is not among mail.domains of the exporter"

    def directory(self, directory: str, owner: str, run: str) -> Path:
        """Where TensorBoard's files of a run belong. ValueError: not there."""
        root = self._config.tensorboard_dir / _plain(owner)
        if directory == "true":
            return root / run
        if ".." in Path(directory).parts:
            raise ValueError("leads upwards")
        if not Path(directory).is_absolute():
            return root / directory / run
        if owner != self._config.user:
            raise ValueError(
                f"an absolute directory is for jobs of {self._config.user} alone, whose files the exporter writes"
            )
        return Path(directory) / run

    def key(self, url: str) -> str:
        """The key for that server; empty: there is none. OSError: its file can't be read."""
        file = self._config.keys.get(server(url), "")
        return secret(file) if file else ""


def _plain(name: str) -> str:
    """Of a user's name: one directory's."""
    return "".join(c if c.isalnum() or c in "-_@" else "_" for c in name) or "_"
