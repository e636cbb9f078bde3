"""An S3 bucket as an object store, through boto3.

Credentials come only from the usual AWS chain (environment, profile, instance role) and never appear in a message.
Time-outs and retries are bounded: a lost server becomes an error within a minute, one that accepts a request and never
answers in two (`attempts` times `read_timeout`). Conditional writes use
`If-None-Match: *` (https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html).
"""

from __future__ import annotations

import datetime
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import boto3
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from roleagent.errors import StorageError
from roleagent.storage.object_store import (
    Digest,
    Listing,
    MissingObjectError,
    MissingStoreError,
    ObjectExistsError,
    StoredObject,
    UnreachableStoreError,
    check_key,
    check_prefix,
)

_BLOCK = 1 << 20
_PART = 16 * 1024 * 1024
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_MISSING = {"404", "NoSuchKey", "NotFound"}
_TAKEN = {"409", "412", "ConditionalRequestConflict", "PreconditionFailed"}
_BUSY = {"500", "503", "InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown"}
_REFUSED = {"401", "403", "AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"}
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
_SETTING = "storage.endpoint_url"
#: Where botocore looks for an endpoint, in its order; a profile comes last.
_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"


class S3Store:
    """Objects below `s3://bucket/prefix`.

    Args:
        bucket: the bucket; it must exist (see `ensure_bucket`).
        prefix: a folder in it; may be empty.
        endpoint_url: another S3 service than AWS; it is addressed path-style (`endpoint/bucket/key`).
        connect_timeout: seconds to wait for a connection.
        read_timeout: seconds to wait for a silent server.
        attempts: tries of one request in all.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str = "",
        connect_timeout: float = 5.0,
        read_timeout: float = 30.0,
        attempts: int = 4,
    ) -> None:
        if not _BUCKET.fullmatch(bucket):
            raise StorageError(f"'{bucket}' is no S3 bucket name: write storage.uri as s3://bucket/prefix")
        self.bucket = bucket
        self.prefix = check_prefix(prefix.strip("/"))
        given = _without_userinfo(endpoint_url)
        config = Config(
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            retries={"total_max_attempts": attempts, "mode": "standard"},
            max_pool_connections=16,
            s3={"addressing_style": "path" if endpoint_url else "auto"},
            # Objects carry a SHA-256 in the manifest. The newer checksum trailers are not known to every S3 service.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        self._transfer = TransferConfig(
            multipart_threshold=_PART, multipart_chunksize=_PART, max_concurrency=4, num_download_attempts=2
        )
        try:
            # A session of its own: the default one would keep credentials of earlier stores in the process.
            self._client: Any = boto3.session.Session().client("s3", endpoint_url=given or None, config=config)
        except (BotoCoreError, ValueError) as error:
            raise StorageError(
                f"cannot use S3 endpoint '{given or 'default'}': {_one_line(error)}; check {_source(given)}"
            ) from error
        #: the address that is really asked, without credentials
        self.endpoint = _without_userinfo(self._client.meta.endpoint_url)
        self._source = _source(given)
        if not self._source and "amazonaws." not in self.endpoint:
            self._source = "endpoint_url in the AWS profile"

    def check_writable(self) -> None:
        """Begin an upload and give it up: it needs the right to write, and leaves nothing to be seen."""
        key = self._key(f"probe-{secrets.token_hex(8)}")
        with self._explained("write", ""):
            upload = self._client.create_multipart_upload(Bucket=self.bucket, Key=key)["UploadId"]
        with suppress(ClientError):  # a bucket policy may forbid it; what is left is swept away later
            self._client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload)

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        """Write an object whole; see `ObjectStore.put`.

        A retried conditional write may meet the object that its own first attempt left. `ObjectExistsError` then says
        only that an object is there; the commit compares contents.
        """
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        with self._explained("write", key):
            self._client.put_object(Bucket=self.bucket, Key=self._key(key), Body=data, **condition)

    def put_file(self, key: str, path: Path) -> None:
        """Upload a file, in parts of 16 MiB side by side when it is larger than one."""
        with self._explained("write", key):
            self._client.upload_file(str(path), self.bucket, self._key(key), Config=self._transfer)

    def get(self, key: str) -> bytes:
        """Return an object's bytes."""
        with self._explained("read", key):
            data: bytes = self._client.get_object(Bucket=self.bucket, Key=self._key(key))["Body"].read()
        return data

    def get_file(self, key: str, path: Path) -> None:
        """Download an object into a file."""
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        with self._explained("read", key):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._client.download_file(self.bucket, self._key(key), str(temporary), Config=self._transfer)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)

    def digest(self, key: str) -> Digest:
        """Return an object's size and SHA-256, streamed."""
        state = hashlib.sha256()
        size = 0
        with self._explained("read", key):
            body = self._client.get_object(Bucket=self.bucket, Key=self._key(key))["Body"]
            for block in body.iter_chunks(_BLOCK):
                state.update(block)
                size += len(block)
        return Digest(size, state.hexdigest())

    def exists(self, key: str) -> bool:
        """Return whether there is an object under this key."""
        try:
            with self._explained("read", key):
                self._client.head_object(Bucket=self.bucket, Key=self._key(key))
        except MissingObjectError:
            return False
        return True

    def list(self, prefix: str = "") -> Listing:
        """Return all objects below a folder, sorted by key."""
        folder = self._folder(prefix)
        skip = len(self.prefix) + 1 if self.prefix else 0
        found = []
        with self._explained("list", prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=folder)
            for page in pages:
                for item in page.get("Contents", ()):
                    if not item["Key"].endswith("/"):  # some services list folder markers
                        found.append(StoredObject(item["Key"][skip:], int(item["Size"])))
        return sorted(found)

    def folders(self, prefix: str = "") -> tuple[str, ...]:
        """Return the names of the folders directly below a folder, sorted."""
        folder = self._folder(prefix)
        names: set[str] = set()
        with self._explained("list", prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=folder, Delimiter="/"
            )
            for page in pages:
                names.update(item["Prefix"][len(folder) :].rstrip("/") for item in page.get("CommonPrefixes", ()))
        return tuple(sorted(names))

    def delete(self, key: str) -> None:
        """Delete an object; nothing happens if there is none."""
        with self._explained("delete", key):
            self._client.delete_object(Bucket=self.bucket, Key=self._key(key))

    def sweep(self, prefix: str = "", *, older_than_seconds: float = 86_400.0) -> int:
        """Abort unfinished multipart uploads, which a killed writer leaves and which are billed; return how many."""
        limit = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=older_than_seconds)
        removed = 0
        with self._explained("list uploads of", prefix):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self.bucket, Prefix=self._folder(prefix)
            )
            for page in pages:
                for upload in page.get("Uploads", ()):
                    if upload["Initiated"] <= limit:
                        self._client.abort_multipart_upload(
                            Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                        )
                        removed += 1
        return removed

    def uri(self, key: str = "") -> str:
        """Return the `s3://` address of an object, or of the store."""
        parts = [self.bucket, self.prefix, check_key(key) if key else ""]
        return "s3://" + "/".join(part for part in parts if part)

    def ensure_bucket(self) -> None:
        """Make the bucket if it is not there: for a server of one's own, not for AWS, where policy decides."""
        try:
            with self._explained("find", ""):
                self._client.head_bucket(Bucket=self.bucket)
        except MissingObjectError:
            with self._explained("create", ""):
                self._client.create_bucket(Bucket=self.bucket)

    def _key(self, key: str) -> str:
        return f"{self.prefix}/{check_key(key)}" if self.prefix else check_key(key)

    def _folder(self, prefix: str) -> str:
        parts = [part for part in (self.prefix, check_prefix(prefix)) if part]
        return "/".join(parts) + "/" if parts else ""

    @contextmanager
    def _explained(self, verb: str, key: str) -> Iterator[None]:
        """Turn what boto3 raises into one line with endpoint, bucket, key and remedy; service texts are left out."""
        try:
            yield
        except (BotoCoreError, Boto3Error, ClientError, OSError) as error:
            cause: BaseException | None = error
            while isinstance(cause, Boto3Error):  # transfers wrap the reason in errors of their own
                cause = getattr(cause, "last_exception", None) or cause.__cause__ or cause.__context__
            path = "/".join(part for part in (self.prefix, key) if part)
            where = f"s3://{self.bucket}/{path} at {self.endpoint}"
            raise self._translate(cause or error, f"cannot {verb} {where}") from error

    def _translate(self, cause: BaseException, what: str) -> StorageError:
        if isinstance(cause, (NoCredentialsError, PartialCredentialsError)):
            return StorageError(f"{what}: no AWS credentials were found: {_CREDENTIALS}")
        if isinstance(cause, ClientError):
            code = str(cause.response.get("Error", {}).get("Code", "unknown"))
            if code in _TAKEN:
                return ObjectExistsError(f"{what}: an object is there already")
            if code == "NoSuchBucket":
                return MissingStoreError(f"{what}: the bucket does not exist: create it, or change storage.uri")
            if code in _MISSING:
                return MissingObjectError(f"{what}: there is no such object")
            if code in _REFUSED:
                return StorageError(f"{what}: the credentials were refused ({code}): {_CREDENTIALS}")
            kind = UnreachableStoreError if code in _BUSY else StorageError
            return kind(f"{what}: the service answered {code}; try again, or look at its log")
        if isinstance(cause, BotoCoreError):
            return UnreachableStoreError(f"{what}: no answer ({type(cause).__name__}): {self._no_answer()}")
        return StorageError(f"{what}: {_one_line(cause)}")

    def _no_answer(self) -> str:
        if not self._source:
            return "check the network, or set storage.endpoint_url to another S3 service"
        here = urlsplit(self.endpoint).hostname in _LOOPBACK
        start = " (`make up` starts the one of the local stack)" if here else ""
        return f"is the server running{start}, and is {self._source} right?"


def _source(endpoint_url: str) -> str:
    """Return what an endpoint was set by: the setting, a variable or a profile; "" for the one of AWS."""
    if endpoint_url:
        return _SETTING
    if os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
        return ""
    return next((name for name in _VARIABLES if os.environ.get(name)), "")


def _without_userinfo(url: str) -> str:
    """An endpoint may be written with a password in it; it would end up in messages and logs."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
