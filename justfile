# Recipes over the scripts of .ci/, which are what CI runs. `just` without arguments lists them.

_default:
    @just --list --unsorted

# All that must hold before a change lands
all:
    .ci/run

# Format, lints, documentation of the code
check:
    .ci/lint

# Every test, or those that the arguments select: `just test -E 'test(documents)'`
test *args:
    .ci/test {{args}}

# Simulated worlds: `just sim`, `just sim 0..10000`, `just sim 0..1000 batch`
sim seeds='0..1000' world='services':
    cargo run --locked -p rcfarm-sim --example sim -- --scenario {{world}} --seeds {{seeds}}

# Fuzz each parser, or one: `just fuzz 60 selector`
fuzz seconds='15' *targets:
    SECONDS_EACH={{seconds}} .ci/fuzz {{targets}}

# Lists in docs/ that the program generates
update-docs:
    UPDATE_DOCS=1 cargo test --locked --test it documents
    UPDATE_DOCS=1 cargo test --locked --lib machine
    cargo run --locked -p rcfarm-sim --example sim -- --mutations

# Licences and advisories of dependencies
deny:
    cargo deny check
