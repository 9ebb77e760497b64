"""SweTask: a row's task, checked. What `reset` is told, as JSON; two kinds:

bundled    {"repo": "roman", "files": {"roman/parse.py": "..."}}     a repository of `repos/` with some files replaced: the bug
row        {"repo": "owner/name", "base_commit": ..., "test_patch": ..., "FAIL_TO_PASS": [...], "PASS_TO_PASS": [...]}
           as SWE-Gym and SWE-bench have them; the repository comes from the server's --mirror, or is in a container image: of the row
           (`image`), or named after its `instance_id` by the server's --image
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def _listed(value: Any) -> Any:
    """SWE-bench keeps its lists as JSON texts."""
    return json.loads(value) if isinstance(value, str) else value


TestNames = Annotated[list[str], BeforeValidator(_listed)]


class SweTask(BaseModel):
    model_config = ConfigDict(extra="ignore")
    repo: str = Field(min_length=1)
    files: dict[str, str] = Field(default_factory=dict, description="bundled: path -> content in place of the repository's own")
    base_commit: str | None = Field(None, pattern=r"^[0-9A-Za-z][0-9A-Za-z._/-]*$")
    test_patch: str | None = None
    fail_to_pass: TestNames = Field(default_factory=list, alias="FAIL_TO_PASS")
    pass_to_pass: TestNames = Field(default_factory=list, alias="PASS_TO_PASS")
    instance_id: str | None = None
    image: str | None = Field(
        None, validation_alias=AliasChoices("image", "docker_image", "image_name"), description="row: the container image that has its repository"
    )
    max_turns: int | None = Field(None, ge=1, description="fewer than the server's --max-turns")

    @model_validator(mode="after")
    def _is_whole(self) -> SweTask:
        if not self.is_row:
            return self
        if self.base_commit is None:
            raise ValueError(f"the row of {self.repo} has no base_commit: it cannot be known what the patch is for. Add the field.")
        if not self.test_patch or not self.fail_to_pass:
            raise ValueError(f"the row of {self.repo} has no tests: it needs test_patch and FAIL_TO_PASS, else nothing can be judged.")
        return self

    @property
    def is_row(self) -> bool:
        return bool(self.base_commit or self.test_patch or self.fail_to_pass or "/" in self.repo)
