"""prepare: inputs on Google Cloud Storage and HDFS, as far as servers and libraries of the test's own can stand for them.

GCS: a server that speaks as much of its JSON API as reading takes, named as Google's own tools have emulators named. HDFS: Arrow reads
it through Hadoop's libhdfs, which needs Java; here a libhdfs of the same functions reads a local folder. What Google's and
Hadoop's own libraries add, such as credentials, isn't shown.
"""

import subprocess
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from test_prepare_inputs import Files, check_storage, serving, write_tree


class Gcs(Files):
    """`files` are BUCKET/NAME."""

    def answer(self, send: bool):
        parts, asked = (
            urlsplit(self.path),
            {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()},
        )
        path = unquote(parts.path)
        if path.startswith("/storage/v1/b/") and asked.get("alt") != "media":
            bucket, _, name = path.removeprefix("/storage/v1/b/").partition("/o")
            if not name:
                found = [
                    key
                    for key in sorted(self.files)
                    if key.startswith(f"{bucket}/{asked.get('prefix', '')}")
                ]
                return self.answer_json(
                    {"kind": "storage#objects", "items": [self.about(key) for key in found]}
                )
            key = f"{bucket}/{name[1:]}"
            return self.answer_json(self.about(key)) if key in self.files else self.send_error(404)
        self.path = (
            path.removeprefix("/download")
            .removeprefix("/storage/v1/b/")
            .replace("/o/", "/", 1)
            .strip("/")
        )
        if (given := self.headers.get("Range", "")).endswith("-") and self.path in self.files:
            self.headers.replace_header("Range", f"{given}{len(self.files[self.path]) - 1}")
        super().answer(send)

    def about(self, key: str) -> dict:
        bucket, name = key.split("/", 1)
        return {
            "kind": "storage#object",
            "id": f"{key}/1",
            "bucket": bucket,
            "name": name,
            "generation": "1",
            "metageneration": "1",
            "size": str(len(self.files[key])),
            "timeCreated": "2026-01-01T00:00:00Z",
            "updated": "2026-01-01T00:00:00Z",
        }


def test_gcs_folders_globs_and_parquet(tmp_path):
    wanted = write_tree(tmp_path / "sft")
    files = {
        f"acme/sft/{name}": (tmp_path / "sft" / name).read_bytes()
        for name in ("a.jsonl", "deep/b.parquet")
    }
    with serving(Gcs, files) as httpd:
        check_storage(
            "gs://acme/sft",
            wanted,
            tmp_path,
            {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{httpd.server_port}"},
        )


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory):
    """The environment in which Arrow finds a libhdfs over a local folder, and that folder."""
    folder = tmp_path_factory.mktemp("hdfs")
    libraries = (
        folder / "jre" / "lib" / "server"
    )  # where it looks for Java's, which must be there, too
    libraries.mkdir(parents=True)
    source = Path(__file__).parent / "local_hdfs.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", libraries / "libhdfs.so", source], check=True)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", libraries / "libjvm.so", "-x", "c", "/dev/null"],
        check=True,
    )
    (folder / "root").mkdir()
    return folder / "root", {
        "JAVA_HOME": str(folder / "jre"),
        "ARROW_LIBHDFS_DIR": str(libraries),
        "LOCAL_HDFS": str(folder / "root"),
        "LOCAL_HDFS_NAMENODE": "nn1:8020",
    }


def test_hdfs_folders_globs_and_parquet(hdfs, tmp_path):
    root, environment = hdfs
    check_storage("hdfs://nn1:8020/sft", write_tree(root / "sft"), tmp_path, environment)
