"""`/policy`: what is in force, and changing it without a restart."""

import json

import pytest

FIELDS = """runtimes default_runtime max_sessions max_open_sessions max_sessions_per_tenant evict_idle_after
mem_limit memswap_limit cpus cpu_shares pids_limit network_mode oci_runtime work_dir idle_timeout
execute_timeout max_read_bytes persist_containers sandbox_uid workspace_ttl container_ttl tmpfs_size prewarm
buildkit native_files native_writes native_realpath""".split()
RUNTIME_FIELDS = """alias image description builds mem_limit memswap_limit cpus cpu_shares pids_limit network_mode
oci_runtime""".split()
DEFAULTS = {
    "max_sessions": 20,
    "max_open_sessions": None,
    "max_sessions_per_tenant": None,
    "evict_idle_after": None,
    "mem_limit": "1g",
    "memswap_limit": None,
    "cpus": 2.0,
    "cpu_shares": None,
    "pids_limit": 512,
    "tmpfs_size": "64m",
    "network_mode": "none",
    "oci_runtime": None,
    "work_dir": "/workspace",
    "persist_containers": False,
    "prewarm": True,
    "idle_timeout": 1800,
    "workspace_ttl": None,
    "container_ttl": None,
    "max_read_bytes": 8388608,
    "execute_timeout": 300,
    "native_files": True,
}
OURS = {"sandbox_uid": 10001, "buildkit": True, "native_writes": True, "native_realpath": True}
#: One that differs from the default, for each field that an update may carry.
VALUES = {
    "max_sessions": 19,
    "max_open_sessions": 500,
    "max_sessions_per_tenant": 7,
    "evict_idle_after": 90,
    "idle_timeout": 1234,
    "workspace_ttl": 400_000_000,
    "container_ttl": 400_000_001,
    "execute_timeout": 299,
    "max_read_bytes": 8_000_000,
    "mem_limit": "768m",
    "memswap_limit": "3g",
    "cpus": 1.5,
    "cpu_shares": 512,
    "pids_limit": 400,
    "tmpfs_size": "48m",
}
CLEARABLE = [name for name in VALUES if name not in ("idle_timeout", "execute_timeout", "max_read_bytes")]
NOT_NEGATIVE = """max_sessions max_open_sessions max_sessions_per_tenant evict_idle_after idle_timeout workspace_ttl
container_ttl""".split()
POSITIVE = ["execute_timeout", "max_read_bytes", "cpus", "cpu_shares", "pids_limit"]
CEILINGS = {"mem_limit": "700m", "memswap_limit": "2g", "cpus": 1.25, "cpu_shares": 256, "pids_limit": 300}
FORBIDDEN = {
    "image": "debian",
    "network_mode": "bridge",
    "oci_runtime": "runsc",
    "sandbox_uid": 0,
    "work_dir": "/elsewhere",
    "persist_containers": True,
    "prewarm": False,
    "token": "x" * 40,
    "workspace_root": "/",
    "native_files": False,
    "buildkit": False,
    "ui_enabled": True,
    "anything": 1,
}
RUNTIMES = json.dumps(
    {
        "plain": {"image": "example.test/plain:1", "description": "As it comes"},
        "big": {
            "image": "example.test/big:1",
            "mem_limit": "3g",
            "memswap_limit": "4g",
            "cpus": 1.5,
            "cpu_shares": 333,
            "pids_limit": 99,
            "network_mode": "bridge",
        },
        "made": {
            "runtime": {
                "name": "made",
                "description": "Made here",
                "base_image": "debian-bookworm",
                "packages": ["one", "two"],
                "package_manager": "pip",
            }
        },
    }
)
OWN = {"mem_limit": "3g", "memswap_limit": "4g", "cpus": 1.5, "cpu_shares": 333, "pids_limit": 99, "network_mode": "bridge"}
runtimes = pytest.mark.settings(runtimes=RUNTIMES, prewarm="false", cpu_shares="777")


def named(answer, *fields):
    """Whether a 422 names the field."""
    assert answer.status_code == 422, answer.text
    return any(all(field in entry["loc"] for field in fields) for entry in answer.json()["detail"])


@pytest.fixture
def policy(api):
    """The policy, which is put back after a case."""
    before = api.policy()
    yield before
    back = {name: before[name] for name in [*VALUES, "default_runtime"]}
    answer = api.put("/policy", back)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("field", FIELDS)
def test_the_policy_has_a_field(api, field):
    """ServicePolicy."""
    assert field in api.policy()


@pytest.mark.parametrize("field", RUNTIME_FIELDS)
def test_a_runtime_of_the_policy_has_a_field(api, field):
    """RuntimePolicy."""
    assert all(field in runtime for runtime in api.policy()["runtimes"])


@pytest.mark.settings()
@pytest.mark.parametrize("field", DEFAULTS)
def test_a_default(api, field):
    """Absent: the default."""
    assert api.policy()[field] == DEFAULTS[field]


@pytest.mark.ours
@pytest.mark.settings()
@pytest.mark.parametrize("field", OURS)
def test_a_default_of_ours(api, field):
    """Ours differ in two; caches are kept between builds; files are served off the host."""
    assert api.policy()[field] == OURS[field]


@runtimes
def test_runtimes_are_sorted_by_alias(api):
    """runtimes: sorted by alias."""
    assert [runtime["alias"] for runtime in api.policy()["runtimes"]] == ["big", "made", "plain"]


@runtimes
def test_the_first_runtime_is_the_default_one(api):
    """The first entry is the default."""
    assert api.policy()["default_runtime"] == "plain"


@runtimes
@pytest.mark.parametrize("field", OWN)
def test_a_runtime_s_own_value_is_in_force(api, field):
    """Effective values: the runtime's own where it names one."""
    assert api.policy()["runtimes"][0][field] == OWN[field]


@runtimes
@pytest.mark.parametrize("field", ["mem_limit", "memswap_limit", "cpus", "cpu_shares", "pids_limit", "network_mode", "oci_runtime"])
def test_the_service_s_value_is_in_force_where_a_runtime_names_none(api, field):
    """Effective values: else the service's default."""
    policy = api.policy()
    assert policy["runtimes"][2][field] == policy[field]


@runtimes
def test_a_runtime_may_name_more_than_the_service(api):
    """A service-wide value is a default, not a maximum."""
    policy = api.policy()
    assert (policy["mem_limit"], policy["runtimes"][0]["mem_limit"]) == ("1g", "3g")


@runtimes
@pytest.mark.parametrize(
    ("index", "image", "builds"),
    [(2, "example.test/plain:1", False), (1, "debian-bookworm + 2 package(s)", True)],
    ids=["an image", "a build"],
)
def test_a_runtime_s_image(api, index, image, builds):
    """image: the image, or BASE + N package(s); builds."""
    runtime = api.policy()["runtimes"][index]
    assert (runtime["image"], runtime["builds"]) == (image, builds)


@runtimes
@pytest.mark.parametrize(("index", "text"), [(2, "As it comes"), (1, "Made here")])
def test_a_runtime_s_description(api, index, text):
    """description."""
    assert api.policy()["runtimes"][index]["description"] == text


@pytest.mark.parametrize("field", VALUES)
def test_an_update_sets_a_field(api, policy, field):
    """PUT /policy: PolicyUpdate -> the whole ServicePolicy."""
    body = {field: VALUES[field]}
    if field == "memswap_limit":
        body["mem_limit"] = "1g"
    answer = api.put("/policy", body)
    assert answer.status_code == 200, answer.text
    assert answer.json()[field] == VALUES[field]
    assert api.policy() == answer.json()


@pytest.mark.parametrize("field", VALUES)
def test_an_update_of_a_field_leaves_the_others_alone(api, policy, field):
    """Absent leaves a value alone."""
    changed = api.put("/policy", {field: VALUES[field]}).json()
    for other in set(FIELDS) - {field, "runtimes"}:
        assert changed[other] == policy[other], other


@pytest.mark.parametrize("field", CLEARABLE)
def test_null_clears_a_field(api, policy, field):
    """null clears one that may be null."""
    assert api.put("/policy", {field: VALUES[field]}).json()[field] == VALUES[field]
    answer = api.put("/policy", {field: None})
    assert answer.status_code == 200 and answer.json()[field] is None


@pytest.mark.ours
@pytest.mark.parametrize("field", ["idle_timeout", "execute_timeout", "max_read_bytes", "default_runtime"])
def test_null_does_not_clear_what_may_not_be_null(api, policy, field):
    """null clears one that may be null; these may not."""
    assert api.put("/policy", {field: None}).status_code in (400, 422)
    assert api.policy() == policy


def test_an_empty_update_changes_nothing(api, policy):
    """Absent leaves a value alone; the answer is the whole policy."""
    answer = api.put("/policy", {})
    assert answer.status_code == 200 and answer.json() == policy


@pytest.mark.parametrize("field", NOT_NEGATIVE)
def test_a_negative_number_is_422_and_named(api, policy, field):
    """each >= 0."""
    assert named(api.put("/policy", {field: -1}), field)


@pytest.mark.settings()
@pytest.mark.parametrize("field", NOT_NEGATIVE)
def test_zero_is_allowed(api, policy, field):
    """each >= 0."""
    body = {field: 0} | ({"max_sessions": 0} if field == "max_open_sessions" else {})
    answer = api.put("/policy", body)
    assert answer.status_code == 200 and answer.json()[field] == 0, answer.text


@pytest.mark.parametrize("field", POSITIVE)
@pytest.mark.parametrize("value", [0, -1])
def test_zero_and_less_are_422_where_more_is_wanted(api, policy, field, value):
    """> 0."""
    assert named(api.put("/policy", {field: value}), field)


@pytest.mark.parametrize("field", FORBIDDEN)
def test_a_field_that_an_update_may_not_carry_is_422_and_named(api, policy, field):
    """Anything else is 422 naming the field."""
    assert named(api.put("/policy", {field: FORBIDDEN[field]}), field)
    assert api.policy() == policy


@pytest.mark.parametrize("field", ["image", "network_mode", "oci_runtime", "description", "runtime", "tmpfs_size"])
def test_a_runtime_s_update_may_carry_ceilings_only(api, policy, field):
    """runtimes: {alias: ceilings}; anything else is 422 naming the field."""
    assert named(api.put("/policy", {"runtimes": {policy["default_runtime"]: {field: "x"}}}), field)


@pytest.mark.parametrize("field", ["cpus", "cpu_shares", "pids_limit"])
def test_a_runtime_s_ceiling_is_more_than_0(api, policy, field):
    """> 0 for a runtime as well."""
    assert named(api.put("/policy", {"runtimes": {policy["default_runtime"]: {field: 0}}}), field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_sessions", "many"),
        ("max_sessions", 1.5),
        ("max_sessions", [1]),
        ("cpus", "fast"),
        ("mem_limit", {"a": 1}),
        ("runtimes", []),
        ("runtimes", "python"),
        ("default_runtime", 7),
        ("idle_timeout", "soon"),
    ],
    ids=lambda part: json.dumps(part),
)
def test_a_value_of_another_type_is_422_and_named(api, policy, field, value):
    """A body that does not validate names the field."""
    assert named(api.put("/policy", {field: value}), field)


def test_a_refused_update_changes_nothing_of_what_it_also_names(api, policy):
    """422: nothing of it is applied."""
    assert api.put("/policy", {"max_sessions": 3, "work_dir": "/x"}).status_code == 422
    assert api.policy() == policy


@pytest.mark.parametrize("body", [{"default_runtime": "nobody"}, {"runtimes": {"nobody": {}}}], ids=["default", "ceilings"])
def test_an_alias_that_is_not_allowed_is_400(api, policy, body):
    """An alias that is not allowed is 400."""
    answer = api.put("/policy", body)
    assert answer.status_code == 400 and isinstance(answer.json()["detail"], str)
    assert api.policy() == policy


@pytest.mark.ours
def test_an_update_with_an_alias_that_is_not_allowed_is_refused_whole(api, policy):
    """400: nothing of it is applied."""
    assert api.put("/policy", {"max_sessions": 3, "runtimes": {"nobody": {"cpus": 1}}}).status_code == 400
    assert api.policy() == policy


@runtimes
def test_the_default_runtime_changes_to_an_allowed_one(api, policy):
    """default_runtime (an allowed alias)."""
    assert api.put("/policy", {"default_runtime": "big"}).json()["default_runtime"] == "big"


@pytest.mark.settings(runtimes=RUNTIMES, prewarm="false")
@pytest.mark.parametrize("field", CEILINGS)
def test_a_runtime_s_ceiling_is_set_for_it_alone(api, policy, field):
    """runtimes: {alias: {mem_limit, memswap_limit, cpus, cpu_shares, pids_limit}}."""
    before = {runtime["alias"]: runtime for runtime in policy["runtimes"]}
    answer = api.put("/policy", {"runtimes": {"plain": {field: CEILINGS[field]}}})
    assert answer.status_code == 200, answer.text
    after = {runtime["alias"]: runtime for runtime in answer.json()["runtimes"]}
    assert after["plain"] == before["plain"] | {field: CEILINGS[field]}
    assert (after["big"], after["made"]) == (before["big"], before["made"])
    cleared = api.put("/policy", {"runtimes": {"plain": {field: None}}}).json()
    assert cleared["runtimes"][2][field] == cleared[field]


@pytest.mark.settings(runtimes=RUNTIMES, prewarm="false")
def test_an_update_does_not_change_membership(api, policy):
    """Membership of runtimes is no matter of an update."""
    updated = api.put("/policy", {"runtimes": {"big": {"cpus": 1.0}}}).json()
    assert [runtime["alias"] for runtime in updated["runtimes"]] == ["big", "made", "plain"]


def test_an_update_reaches_runtimes_that_name_no_value_of_their_own(api, policy):
    """Effective values follow the service's default."""
    answer = api.put("/policy", {"pids_limit": 333}).json()
    assert any(runtime["pids_limit"] == 333 for runtime in answer["runtimes"])


def test_health_shows_an_updated_ceiling(api, policy):
    """limit is the ceiling in force."""
    api.put("/policy", {"max_sessions": 17})
    assert api.health()["limit"] == 17


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null"], ids=repr)
def test_an_update_that_is_no_object_is_422(api, policy, body):
    """A body that does not validate is 422."""
    answer = api.call("PUT", "/policy", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422


@pytest.mark.sandbox
def test_an_update_applies_to_the_next_sandbox_and_not_to_a_running_one(api, policy):
    """Applies to the next sandbox; one already running keeps its ceilings."""
    size = "df -k --output=size /tmp | tail -1"
    running = api.open()
    before = running.out(size)
    api.put("/policy", {"tmpfs_size": "24m"})
    assert int(api.open().out(size)) == 24 * 1024
    assert running.out(size) == before


@pytest.mark.sandbox
def test_an_updated_deadline_holds_for_the_next_command(api, policy, session):
    """execute_timeout."""
    api.put("/policy", {"execute_timeout": 1})
    assert session.run("sleep", "20")["timed_out"]


@pytest.mark.sandbox
def test_an_updated_reading_limit_holds_for_the_next_read(api, policy, session, work):
    """max_read_bytes."""
    session.put(f"{work}/a", b"x" * 100)
    api.put("/policy", {"max_read_bytes": 99})
    assert session.file("read", f"{work}/a").status_code == 409


@pytest.mark.sandbox
@pytest.mark.settings()
def test_an_updated_ceiling_holds_for_the_next_session(api, policy):
    """max_sessions."""
    api.open()
    api.put("/policy", {"max_sessions": 1})
    assert api.try_open().status_code == 429


@pytest.mark.sandbox
@pytest.mark.settings()
def test_an_updated_default_runtime_is_what_the_next_session_gets(api, policy):
    """default_runtime."""
    other = next(r["alias"] for r in policy["runtimes"] if r["alias"] != policy["default_runtime"])
    api.put("/policy", {"default_runtime": other})
    assert api.open().info()["runtime"] == other
