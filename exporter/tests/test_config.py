"""Where the exporter goes for whom, and with which keys."""

import os
import pwd
from pathlib import Path

import pytest
from muster_exporter.config import ConfigError, Reach, from_dict
from muster_exporter.sinks import NotAllowed, check, destination


@pytest.fixture
def reach(tmp_path):
    (tmp_path / "key").write_text("SECRET\n")
    (tmp_path / "other").write_text("OTHER")
    return of(
        tmp_path,
        allowed_hosts=[
            "MLflow.example.org",
            "http://10.0.0.7:5000",
            "https://[::1]:8443/",
            "[::2]",
        ],
        keys={
            "mlflow.example.org": str(tmp_path / "key"),
            "http://10.0.0.7:5000": str(tmp_path / "other"),
        },
    )


def of(tmp_path, **given):
    config = from_dict({"data_dir": str(tmp_path)} | given, "exporter.toml")
    config.user = "exporter"
    return Reach(config)


def test_a_bare_host_is_https_on_443_and_all_else_is_written_out(reach):
    for url in (
        "https://mlflow.example.org",
        "https://MLFLOW.example.org:443/any/path",
        "http://10.0.0.7:5000/x",
        "https://[::1]:8443",
        "https://[::2]/",
    ):
        assert reach.why_not_url(url, "eve") == "", url
    for url in (
        "http://mlflow.example.org",
        "https://mlflow.example.org:6666",
        "https://10.0.0.7:5000",
        "http://10.0.0.7",
        "http://10.0.0.7:5001",
        "https://mlflow.example.org.evil.net",
        "https://mlflow.example.org@evil.net",
        "https://evil.net#mlflow.example.org",
        "https://[::1]",
    ):
        assert reach.why_not_url(url, "eve") != "", url


def test_ones_own_jobs_go_anywhere_that_is_a_url(reach):
    assert reach.why_not_url("http://elsewhere:1/", "exporter") == ""
    for url in ("http://[::1/", "http://x:99999/", "ftp://x/", "http:///x", "x", "http://a:b@x/"):
        assert "no http or https URL" in reach.why_not_url(url, "exporter"), url


def test_a_key_goes_to_its_server_alone_and_never_in_clear_text_unless_it_says_so(reach):
    assert reach.key("https://mlflow.example.org/x") == "SECRET"
    assert reach.key("https://mlflow.example.org:443/x") == "SECRET"
    assert reach.key("http://10.0.0.7:5000") == "OTHER"
    for url in (
        "http://mlflow.example.org",
        "https://mlflow.example.org:6666",
        "https://example.org",
        "https://10.0.0.7:5000",
        "http://10.0.0.7",
    ):
        assert reach.key(url) == "", url


@pytest.mark.parametrize(
    "name", ["h:5000", "http://h/path", "ftp://h", "https://", "a@b", "h/x", "http://h:x"]
)
@pytest.mark.parametrize("setting", ["allowed_hosts", "keys"])
def test_a_server_that_isnt_clear_is_refused(tmp_path, setting, name):
    with pytest.raises(ConfigError, match="write HOST"):
        of(tmp_path, **{setting: [name] if setting == "allowed_hosts" else {name: "/k"}})


def test_settings_of_a_wrong_type_are_refused(tmp_path):
    for wrong in ({"allowed_hosts": [1]}, {"keys": {"h": 1}}, {"wandb_projects": [[]]}):
        with pytest.raises(ConfigError, match="texts"):
            of(tmp_path, **wrong)


def test_mails_of_others_go_to_its_domains(tmp_path):
    assert "no [mail]" in of(tmp_path).why_not_mail("a@b", "exporter")
    mail = {"sendmail": "/s", "sender": "m@x", "domains": ["example.org"]}
    reach = of(tmp_path, mail=mail)
    assert reach.why_not_mail("ann@EXAMPLE.org", "eve") == ""
    assert reach.why_not_mail("ann@x.net", "exporter") == ""
    for address in ("ann@sub.example.org", "ann@notexample.org", "example.org@x.net"):
        assert "mail.domains" in reach.why_not_mail(address, "eve"), address


def test_directories_of_others_stay_below_their_own(tmp_path):
    reach = of(tmp_path, tensorboard_dir="/tb")
    assert reach.directory("true", "eve", "r") == Path("/tb/eve/r")
    assert reach.directory("a/b", "eve", "r") == Path("/tb/eve/a/b/r")
    assert reach.directory("/shared", "exporter", "r") == Path("/shared/r")
    assert reach.directory("true", "../../root", "r").parent.parent == Path("/tb")
    for directory, owner in (
        ("/shared", "eve"),
        ("../ann", "eve"),
        ("a/../../ann", "eve"),
        ("/shared/../etc", "exporter"),
        ("..", "exporter"),
    ):
        with pytest.raises(ValueError):
            reach.directory(directory, owner, "r")


def test_projects_of_others_are_those_that_it_names(tmp_path, about):
    config = from_dict(
        {"data_dir": str(tmp_path), "wandb_projects": ["nlp/sft", "open/*", "own"]}, "x"
    )
    config.user = "exporter"

    def allowed(project, owner="eve"):
        try:
            its = about | {"owner": owner, "track": {"wandb": project}}
            check(config, Reach(config), "wandb", its)
        except NotAllowed:
            return False
        return True

    assert not allowed("nlp/sft"), "it has no wandb_python"
    config.wandb_python = "python3"
    for project in ("nlp/sft", "open/a", "open/b", "own"):
        assert allowed(project), project
    for project in ("nlp/other", "other", "sft", "nlp"):
        assert not allowed(project), project
        assert allowed(project, "exporter"), project


def test_a_destination_is_what_may_hang_as_one(about):
    def of_(owner, **track):
        return {destination(name, about | {"owner": owner, "track": track}) for name in track}

    assert of_("a", mlflow="http://h:1/x") == of_("b", mlflow="http://H:1/y")
    assert of_("a", mlflow="http://h:1/x") != of_("a", mlflow="http://h:2/x")
    assert of_("a", wandb="p/q") != of_("b", wandb="p/q")


def test_the_user_is_who_runs_it_whatever_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("LOGNAME", "eve")
    monkeypatch.setenv("USER", "eve")
    user = from_dict({"data_dir": str(tmp_path)}, "x").user
    assert user == pwd.getpwuid(os.getuid()).pw_name
