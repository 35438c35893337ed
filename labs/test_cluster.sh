#!/bin/sh
# Runs tests/cluster against four hosts in network namespaces, each with its own address, sshd and host key.
# Debian, root. Leaves no host behind, also when it is interrupted.
#   sh labs/test_cluster.sh [pytest arguments]
set -eu
cd "$(dirname "$0")/.."

packages="openssh-server openssh-client iproute2 iptables"
missing=
for name in $packages; do
  dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing="$missing $name"
done
if [ -n "$missing" ]; then
  export DEBIAN_FRONTEND=noninteractive
  # the lab runs sshd itself: the package's own is not to be started meanwhile
  policy=/usr/sbin/policy-rc.d
  [ -e "$policy" ] || { printf '#!/bin/sh\nexit 101\n' > "$policy"; chmod 755 "$policy"; made=$policy; }
  # shellcheck disable=SC2086
  install() { apt-get install -qq -y --no-install-recommends $missing >/dev/null 2>&1; }
  install || { apt-get update -qq && install; } || failed=1
  [ -z "${made:-}" ] || rm -f "$made"
  [ -z "${failed:-}" ] || { echo "test-cluster: cannot install$missing" >&2; exit 69; }
fi

# an address range and a prefix of its own: another lab on this machine is left alone
export NETNS_PREFIX=pdctl NETNS_NET=10.78.0 NETNS_LAB="${TMPDIR:-/tmp}/pdctl-cluster"
trap 'bash labs/netns_lab.sh down' EXIT
trap 'exit 130' INT TERM
bash labs/netns_lab.sh up 4 >&2

config=$NETNS_LAB/ssh_config
: > "$config"
for i in 1 2 3 4; do
  cat >> "$config" <<C
Host h$i
  HostName $NETNS_NET.$i
  User root
  IdentityFile $NETNS_LAB/id_ed25519
  IdentitiesOnly yes
  UserKnownHostsFile $NETNS_LAB/known_hosts
C
done
export PDCTL_SSH="ssh -F $config" OMP_NUM_THREADS=1
.venv/bin/python -m pytest -m cluster --timeout=300 tests/cluster "$@"
