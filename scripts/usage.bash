# SPDX-License-Identifier: Apache-2.0
# Read by the scripts here before they do anything: prints a script's opening comment for --help, and refuses options.

usage() { sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0"; }

# refuse WHY: of an argument, before any work.
refuse() {
  echo "$(basename "$0"): $1" >&2
  usage >&2
  exit 2
}

# at_most N ARGUMENT...: refuses more than N arguments.
at_most() { [ "$#" -le "$(($1 + 1))" ] || refuse "got '${*:$(($1 + 2)):1}', want at most $1 arguments"; }

for argument in "$@"; do
  case "$argument" in
    -h | --help) usage; exit 0 ;;
    -*) refuse "got '$argument', want no such option" ;;
  esac
done
unset argument
