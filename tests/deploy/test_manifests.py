"""The manifests of deploy/ against what their kinds allow, and against each other and the worker.

Facts about the kinds are from their published schemas: Kubernetes 1.34, InferencePool v1 of the
Gateway API inference extension 1.2, KEDA 2.18, KubeRay 1.5, Prometheus 3.
"""

import json
import re
from pathlib import Path

import pytest
import yaml

from ingle import config

DEPLOY = Path(__file__).parents[2] / "deploy"

ANY = object()
"""A field whose value this file does not look into."""
TEXT, COUNT, FLAG = str, int, bool


class Object(dict):
    """Fields by name; `required` ones must be there, others than these must not."""

    def __init__(self, required=(), **fields):
        super().__init__(fields)
        self.required = required


class Map:
    """Any keys; values of one type."""

    def __init__(self, of):
        self.of = of


TEXTS = Map(TEXT)
META = Object(["name"], name=TEXT, labels=TEXTS, annotations=TEXTS, namespace=TEXT)
SELECTOR = Object(["matchLabels"], matchLabels=TEXTS)
HTTP = Object(["path", "port"], path=TEXT, port=ANY)
PROBE = Object(
    ["httpGet"], httpGet=HTTP, periodSeconds=COUNT, failureThreshold=COUNT, timeoutSeconds=COUNT
)
CONTAINER = Object(
    ["name", "image"],
    name=TEXT,
    image=TEXT,
    args=[TEXT],
    command=[TEXT],
    env=[Object(["name"], name=TEXT, value=TEXT, valueFrom=ANY)],
    ports=[Object(["containerPort"], name=TEXT, containerPort=COUNT, protocol=TEXT)],
    resources=Object(requests=Map(ANY), limits=Map(ANY)),
    securityContext=Object(
        allowPrivilegeEscalation=FLAG,
        readOnlyRootFilesystem=FLAG,
        runAsNonRoot=FLAG,
        capabilities=Object(drop=[TEXT], add=[TEXT]),
    ),
    startupProbe=PROBE,
    readinessProbe=PROBE,
    livenessProbe=PROBE,
    volumeMounts=[Object(["name", "mountPath"], name=TEXT, mountPath=TEXT, readOnly=FLAG)],
)
POD = Object(
    ["containers"],
    containers=[CONTAINER],
    automountServiceAccountToken=FLAG,
    terminationGracePeriodSeconds=COUNT,
    securityContext=Object(
        runAsNonRoot=FLAG, runAsUser=COUNT, runAsGroup=COUNT, fsGroup=COUNT, seccompProfile=ANY
    ),
    volumes=[
        Object(
            ["name"],
            name=TEXT,
            emptyDir=ANY,
            persistentVolumeClaim=Object(["claimName"], claimName=TEXT, readOnly=FLAG),
        )
    ],
)
PORTS = [Object(["port"], name=TEXT, port=COUNT, targetPort=ANY, protocol=TEXT)]
PEERS = [Object(podSelector=SELECTOR, namespaceSelector=SELECTOR)]
POLICY = Object(type=TEXT, value=COUNT, periodSeconds=COUNT)
SCALING = Object(stabilizationWindowSeconds=COUNT, policies=[POLICY], selectPolicy=TEXT)
RAY_GROUP = {
    "rayStartParams": TEXTS,
    "template": Object(["spec"], spec=POD, metadata=META),
}
KINDS = {
    ("apps/v1", "Deployment"): Object(
        ["selector", "template"],
        replicas=COUNT,
        selector=SELECTOR,
        strategy=Object(type=TEXT, rollingUpdate=Object(maxSurge=ANY, maxUnavailable=ANY)),
        template=Object(
            ["metadata", "spec"], metadata=Object(labels=TEXTS, annotations=TEXTS), spec=POD
        ),
    ),
    ("v1", "Service"): Object(["ports"], selector=TEXTS, ports=PORTS, type=TEXT, clusterIP=TEXT),
    ("networking.k8s.io/v1", "NetworkPolicy"): Object(
        ["podSelector"],
        podSelector=SELECTOR,
        policyTypes=[TEXT],
        ingress=[Object(**{"from": PEERS, "ports": PORTS})],
    ),
    ("inference.networking.k8s.io/v1", "InferencePool"): Object(
        ["selector", "targetPorts", "endpointPickerRef"],
        selector=SELECTOR,
        targetPorts=[Object(["number"], number=COUNT)],
        endpointPickerRef=Object(
            ["name"],
            name=TEXT,
            kind=TEXT,
            group=TEXT,
            port=Object(["number"], number=COUNT),
            failureMode=("FailOpen", "FailClose"),
        ),
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): Object(
        ["scaleTargetRef", "triggers"],
        scaleTargetRef=Object(["name"], name=TEXT, kind=TEXT, apiVersion=TEXT),
        minReplicaCount=COUNT,
        maxReplicaCount=COUNT,
        idleReplicaCount=COUNT,
        pollingInterval=COUNT,
        cooldownPeriod=COUNT,
        advanced=Object(
            restoreToOriginalReplicaCount=FLAG,
            horizontalPodAutoscalerConfig=Object(
                behavior=Object(scaleUp=SCALING, scaleDown=SCALING)
            ),
        ),
        # Metadata are texts, numbers too: KEDA refuses others.
        triggers=[Object(["type", "metadata"], type=("prometheus",), metadata=TEXTS, name=TEXT)],
    ),
    ("ray.io/v1", "RayService"): Object(
        ["rayClusterConfig"],
        serveConfigV2=TEXT,
        rayClusterConfig=Object(
            ["headGroupSpec"],
            rayVersion=TEXT,
            headGroupSpec=Object(["rayStartParams", "template"], **RAY_GROUP),
            workerGroupSpecs=[
                Object(
                    ["groupName", "rayStartParams", "template", "minReplicas", "maxReplicas"],
                    groupName=TEXT,
                    replicas=COUNT,
                    minReplicas=COUNT,
                    maxReplicas=COUNT,
                    numOfHosts=COUNT,
                    **RAY_GROUP,
                )
            ],
        ),
    ),
}


def misfit(value, shape, place):
    """What does not fit, or None."""
    if shape is ANY:
        return None
    if isinstance(shape, tuple):
        return None if value in shape else f"{place}: {value!r}"
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{place}: no list"
        return first(misfit(each, shape[0], f"{place}[{i}]") for i, each in enumerate(value))
    if isinstance(shape, Object | Map):
        return misfit_of_object(value, shape, place)
    return None if type(value) is shape else f"{place}: {value!r} is no {shape.__name__}"


def misfit_of_object(value, shape, place):
    if not isinstance(value, dict):
        return f"{place}: no object"
    if isinstance(shape, Map):
        return first(misfit(each, shape.of, f"{place}.{k}") for k, each in value.items())
    missing = [f"{place}.{name} is missing" for name in shape.required if name not in value]
    unknown = [f"{place}.{name} is unknown" for name in value if name not in shape]
    return first([*missing, *unknown]) or first(
        misfit(each, shape[k], f"{place}.{k}") for k, each in value.items()
    )


def first(found):
    return next(filter(None, found), None)


def documents(name):
    return [each for each in yaml.safe_load_all((DEPLOY / name).read_text()) if each]


def only(kind):
    found = [d for path in MANIFESTS for d in documents(path) if d["kind"] == kind]
    assert len(found) == 1, kind
    return found[0]


MANIFESTS = ["kubernetes.yaml", "inferencepool.yaml", "scaledobject.yaml", "rayservice.yaml"]


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_fit_their_kinds(name):
    found = documents(name)
    assert found
    for document in found:
        shape = KINDS[document["apiVersion"], document["kind"]]
        assert set(document) == {"apiVersion", "kind", "metadata", "spec"}
        assert misfit(document["metadata"], META, "metadata") is None
        assert misfit(document["spec"], shape, "spec") is None


def test_a_misspelled_field_a_wrong_type_and_a_missing_field_are_found():
    pool = only("InferencePool")["spec"]
    shape = KINDS["inference.networking.k8s.io/v1", "InferencePool"]
    assert "extensionRef is unknown" in misfit(pool | {"extensionRef": {}}, shape, "spec")
    assert "is no int" in misfit(pool | {"targetPorts": [{"number": "8000"}]}, shape, "spec")
    less = {k: v for k, v in pool.items() if k != "selector"}
    assert misfit(less, shape, "spec") == "spec.selector is missing"


def test_manifests_agree_with_each_other():
    pod = only("Deployment")["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert labels["llm-d.ai/engine-type"] == "vllm"
    for kind in ("Service", "InferencePool", "NetworkPolicy"):
        spec = only(kind)["spec"]
        selector = spec.get("selector") or spec["podSelector"]
        selector = selector.get("matchLabels", selector)
        assert selector.items() <= labels.items(), kind
    [container] = pod["spec"]["containers"]
    ports = {each["containerPort"] for each in container["ports"]}
    assert only("InferencePool")["spec"]["targetPorts"][0]["number"] in ports
    assert only("ScaledObject")["spec"]["scaleTargetRef"]["name"] == "ingle"
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in pod["spec"]["volumes"]}
    grace = pod["spec"]["terminationGracePeriodSeconds"]
    assert any(f"--shutdown-timeout={n}" in container["args"] for n in range(1, grace - 9))


def test_the_arguments_of_the_deployment_are_settings_of_ingle_serve():
    [container] = only("Deployment")["spec"]["template"]["spec"]["containers"]
    command, model, *flags = container["args"]
    assert command == "serve"
    values = {}
    for flag in flags:
        name, _, value = flag.removeprefix("--").partition("=")
        values[name.replace("-", "_")] = value.replace("$(POD_IP)", "10.0.0.5")
    settings = config.Settings(
        model=model,
        **{
            name: type(config.DEFAULTS[name])(value)
            if isinstance(config.DEFAULTS[name], int | float)
            else value
            for name, value in values.items()
        },
    )
    assert settings.kv_events().endpoints() == ["tcp://10.0.0.5:5557", "tcp://10.0.0.5:5558"]
    assert settings.host == "0.0.0.0"


def test_the_ray_service_calls_build_app_with_arguments_that_it_has():
    [application] = yaml.safe_load(only("RayService")["spec"]["serveConfigV2"])["applications"]
    assert application["import_path"] == "ingle.integrations.ray:app"
    source = (DEPLOY.parent / "python/ingle/integrations/ray/__init__.py").read_text()
    own = set(re.findall(r"^    (\w+): ", source, re.M))
    for name in application["args"]:
        assert name in own or name in config.DEFAULTS, name


def test_the_container_runs_the_wheel_alone_and_not_as_root():
    text = (DEPLOY / "Containerfile").read_text()
    final = text[text.rindex("\nFROM ") :]
    assert re.search(r"^USER (?!0|root)\d+:\d+$", final, re.M)
    assert re.search(r'^ENTRYPOINT \["ingle"\]$', final, re.M)
    assert "RUN" not in final
    copied = re.findall(r"^COPY (?:--from=\w+ )?(\S+)", text, re.M)
    assert copied == ["*.whl", "/opt/ingle"]


def test_the_dashboard_is_whole():
    board = json.loads((DEPLOY / "grafana.json").read_text())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids)) >= 10
    assert all(panel["targets"] for panel in board["panels"])
