#!/bin/sh
# The system packages Boxgrove uses, by the names of each package manager.
#
#   host-packages.sh check     say what is missing
#   host-packages.sh list      print the package names for this system
#   host-packages.sh install   install what is missing, where that needs no password
#
# Status: 0 all is well (optional ones may be missing), 3 something required is missing.
set -eu

PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

case $(uname -m) in
    aarch64 | arm64) cpu=aarch64 qemu_apt=qemu-system-arm qemu_rpm=qemu-system-aarch64-core qemu_arch=qemu-system-aarch64 ;;
    *) cpu=x86_64 qemu_apt=qemu-system-x86 qemu_rpm=qemu-system-x86-core qemu_arch=qemu-system-x86 ;;
esac

# need | there if one of these exists (a command or a path) | apt | dnf | pacman | brew | what for
# "-": that system has no such package, or needs none.
table() {
    cat <<END
required|qemu-system-$cpu|$qemu_apt|$qemu_rpm|$qemu_arch|qemu|running boxes
required|qemu-img|qemu-utils|qemu-img|qemu-img|qemu|disks
required|mke2fs|e2fsprogs|e2fsprogs|e2fsprogs|e2fsprogs|images
required|debugfs|e2fsprogs|e2fsprogs|e2fsprogs|e2fsprogs|images
required|musl-gcc cc|gcc|gcc|gcc|-|the guest agent
required|@venv|python3-venv|python3|python|python|Python packages
optional|musl-gcc|musl-tools|musl-gcc|musl|-|a smaller guest agent
optional|busybox|busybox-static|busybox|busybox|-|the starter image
optional|mmdebstrap|mmdebstrap|mmdebstrap|-|-|the debian image
optional|@debian-keys|debian-archive-keyring|debian-keyring|debian-archive-keyring|-|the debian image
optional|newuidmap|uidmap|shadow-utils|shadow|-|building images without root
optional|unshare|util-linux|util-linux|util-linux|-|building images without root
optional|bwrap|bubblewrap|bubblewrap|bubblewrap|-|confining boxes
optional|zstd|zstd|zstd|zstd|zstd|kernels with compressed drivers
END
    # The desktop's packages (a virtual screen for its tests, libraries of Qt) go here.
}

manager() {
    for name in apt-get dnf pacman brew; do
        if command -v "$name" >/dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
    echo none
}

present() {
    case $1 in
        @venv)
            [ -x "${VENV:-.venv}/bin/python" ] ||
                "${PYTHON:-python3}" -c 'import ensurepip, venv' 2>/dev/null
            return
            ;;
        @debian-keys)
            # Where apt is not the host's own there is no other use for them.
            set -- /usr/share/keyrings/debian-archive-keyring.gpg /usr/share/keyrings/debian-archive-keyring.pgp
            ;;
    esac
    for thing in "$@"; do
        case $thing in
            /*) if [ -e "$thing" ]; then return 0; fi ;;
            *) if command -v "$thing" >/dev/null 2>&1; then return 0; fi ;;
        esac
    done
    return 1
}

# Lines "need package what-for" for every row, or with "missing" for those that are not there.
rows() {
    table | while IFS='|' read -r need things apt dnf pacman brew what; do
        case $manager in
            apt-get) package=$apt ;;
            dnf) package=$dnf ;;
            pacman) package=$pacman ;;
            brew) package=$brew ;;
            *) package=${things%% *} ;;
        esac
        if [ "$package" = - ]; then continue; fi
        # Unquoted: the row may name several things.
        # shellcheck disable=SC2086
        if [ "$1" = missing ] && present $things; then continue; fi
        echo "$need $package $what"
    done
}

packages() {
    cut -d ' ' -f 2 | sort -u | tr '\n' ' ' | sed 's/ $//'
}

command_line() {
    case $manager in
        apt-get) echo "apt-get install -y --no-install-recommends $1" ;;
        dnf) echo "dnf install -y --setopt=install_weak_deps=False $1" ;;
        pacman) echo "pacman -S --needed --noconfirm $1" ;;
        brew) echo "brew install $1" ;;
        *) echo "(your package manager) $1" ;;
    esac
}

report() {
    echo "$missing" | while read -r need package what; do
        echo "$need: $package is missing ($what)" >&2
    done
}

# What is still missing decides the status; optional packages never fail anything.
finish() {
    missing=$(rows missing)
    if [ -z "$missing" ]; then exit 0; fi
    report
    case $missing in
        *required*) ;;
        *) exit 0 ;;
    esac
    prefix=sudo
    if [ "$manager" = brew ]; then prefix=; fi
    echo "Run:  ${prefix:+$prefix }$(command_line "$(echo "$missing" | packages)")" >&2
    exit 3
}

as_root() {
    if [ "$manager" = brew ] || [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

may_install() {
    [ "$manager" != none ] || return 1
    [ "$manager" = brew ] || [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null
}

install_packages() {
    line=$(command_line "$1")
    # shellcheck disable=SC2086
    if [ "$manager" = apt-get ]; then
        as_root env DEBIAN_FRONTEND=noninteractive $line -q
    else
        as_root $line
    fi
}

install_missing() {
    wanted=$(echo "$missing" | packages)
    echo "Installing $wanted"
    if [ "$manager" = apt-get ] && ! ls /var/lib/apt/lists/*_Packages* >/dev/null 2>&1; then
        as_root apt-get update -q
    fi
    if install_packages "$wanted"; then return; fi
    # Lists may name versions that are gone since, and one name that a release does not have
    # spoils the whole line: fresh lists, then one by one, the required ones first.
    if [ "$manager" = apt-get ]; then as_root apt-get update -q || true; fi
    for package in $(echo "$missing" | sort -r | cut -d ' ' -f 2); do
        install_packages "$package" || echo "$package could not be installed"
    done
}

manager=$(manager)
case ${1:-} in
    list)
        rows all | packages
        echo
        ;;
    check)
        finish
        ;;
    install)
        missing=$(rows missing)
        if [ -n "$missing" ] && may_install; then
            install_missing >&2
        fi
        finish
        ;;
    *)
        echo "usage: host-packages.sh install|list|check" >&2
        exit 2
        ;;
esac
