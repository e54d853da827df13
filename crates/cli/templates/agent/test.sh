#!/bin/sh
# Tests the agent with its script, in a store of its own: sh test.sh
set -eu
cd "$(dirname "$0")"
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
export STEPFOLD_STORE="$folder/sessions.db"

stepfold check agent.toml
answer=$(stepfold run agent.toml --session test 'Remind me to buy tea.')
test "$answer" = 'Noted: buy tea.'
test "$(stepfold state get agent.toml --session test tasks)" = '["Buy tea."]'
# The list is sent only after an approval: exit status 3.
stepfold run agent.toml --session test 'Send the list to Ada.' </dev/null && exit 1 || test $? = 3
answer=$(stepfold resume agent.toml --session test --approve all)
test "$answer" = 'Ada has the list.'
stepfold replay agent.toml --session test
echo 'test.sh: ok'
