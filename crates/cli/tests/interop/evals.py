"""pydantic-evals loads a data set, evaluates a task by it, and writes it again. argv: the file, and the file to write."""

import json
import sys

from pydantic_evals import Dataset


def task(inputs) -> str:
    return "I have paid 12."


data_set = Dataset.from_file(sys.argv[1])
report = data_set.evaluate_sync(task, progress=False)
scores = {
    case.name: {name: result.value for name, result in case.assertions.items()} for case in report.cases
}
data_set.to_file(sys.argv[2], schema_path=None)
cases = {
    case.name: {
        "inputs": case.inputs,
        "evaluators": [type(evaluator).__name__ for evaluator in case.evaluators],
    }
    for case in data_set.cases
}
print(json.dumps({"name": data_set.name, "cases": cases, "scores": scores, "failures": len(report.failures)}))
