"""Checks deploy/*.yaml against published custom resource definitions: `check_manifests.py FILE...`.

FILE: definitions as their projects publish them (keda.sh_scaledobjects.yaml,
ray.io_rayservices.yaml, inference.networking.k8s.io_inferencepools.yaml). A field that no schema
names is an error, as with `kubectl apply --validate=strict`. Pods of a Deployment are checked
against the pods of a RayService. Needs the package jsonschema.
"""

import sys
from pathlib import Path
from typing import Any

import jsonschema
import yaml

DEPLOY = Path(__file__).parents[1] / "deploy"
PODS_OF_RAY = ("ray.io/v1", "RayService")


def main(files: list[str]) -> int:
    """Prints what each manifest was checked against and what is wrong; 1 if anything is."""
    schemas = {kind: schema for file in files for kind, schema in schemas_of(Path(file))}
    num_wrong = 0
    for path in sorted(DEPLOY.glob("*.yaml")):
        for document in filter(None, yaml.safe_load_all(path.read_text())):
            kind = (document.get("apiVersion"), document.get("kind"))
            if kind == ("apps/v1", "Deployment") and PODS_OF_RAY in schemas:
                pods = pod_template(schemas[PODS_OF_RAY])
                found = faults(document["spec"]["template"], pods)
            elif kind in schemas:
                found = faults(document, schemas[kind])
            else:
                print(f"{path.name}: {kind[1]}: no schema given")
                continue
            print(f"{path.name}: {kind[1]}: {'; '.join(found) or 'fits'}")
            num_wrong += len(found)
    return 1 if num_wrong or not schemas else 0


def schemas_of(path: Path) -> list[tuple[tuple[str, str], Any]]:
    """(apiVersion, kind) and schema of each version that a file defines."""
    found = []
    for document in filter(None, yaml.safe_load_all(path.read_text())):
        spec = document["spec"]
        for version in spec["versions"]:
            schema = strict(version["schema"]["openAPIV3Schema"])
            # Definitions leave it to the server.
            schema["properties"]["metadata"] = {"type": "object"}
            kind = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
            found.append((kind, schema))
    return found


def strict(schema: Any) -> Any:
    """The same in plain JSON Schema, without room for fields that it does not name."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    made = {name: strict(value) for name, value in schema.items()}
    is_open = {"additionalProperties", "x-kubernetes-preserve-unknown-fields"} & made.keys()
    if "properties" in made and made.get("type") == "object" and not is_open:
        made["additionalProperties"] = False
    return made


def pod_template(ray_service: Any) -> Any:
    """The schema of a pod template, which a RayService contains."""
    for name in ("spec", "rayClusterConfig", "headGroupSpec", "template"):
        ray_service = ray_service["properties"][name]
    return ray_service


def faults(document: Any, schema: Any) -> list[str]:
    """What does not fit, each with its place."""
    errors = jsonschema.Draft7Validator(schema).iter_errors(document)
    return [f"{'.'.join(map(str, error.path))}: {error.message[:200]}" for error in errors]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
