# Sourced by test.sh: ensure_servers installs the servers and the browser that tests start, where this user may. Tests
# that lack one are skipped, and say so.

ensure_servers() {
  local missing=()
  export PATH="$PATH:/usr/sbin:/sbin"
  command -v nginx >/dev/null || missing+=(nginx-light)
  command -v sshd >/dev/null || missing+=(openssh-server)
  command -v promtool >/dev/null || fetch_promtool
  command -v chromium >/dev/null || missing+=(chromium)
  command -v chromedriver >/dev/null || missing+=(chromium-driver)
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "Installing ${missing[*]} for tests" >&2
    if DEBIAN_FRONTEND=noninteractive timeout 300 sh -c \
      "(apt-get -qq update || true) && apt-get -qq install --no-install-recommends --yes ${missing[*]}" >/dev/null 2>&1; then
      return
    fi
  fi
  echo "Without ${missing[*]} the tests of these are skipped" >&2
}

# Take promtool out of Debian's package: installing that would start a server.
fetch_promtool() {
  local folder
  if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    folder=$(mktemp -d)
    if (cd "$folder" && (timeout 120 apt-get -qq update || true) && timeout 180 apt-get -qq download prometheus &&
      dpkg-deb -x prometheus_*.deb . && install -m 755 usr/bin/promtool /usr/local/bin/promtool) >/dev/null 2>&1; then
      rm -rf "$folder"
      return
    fi
    rm -rf "$folder"
  fi
  echo "Without promtool the rules of docs/alerts.yml are not checked" >&2
}
