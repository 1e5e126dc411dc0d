#!/bin/bash
# environment.sh FOLDER: an arm64 Python with edgeinfer's dependencies and a user-mode QEMU, unpacked into FOLDER (about a minute, 500 MB).
# Nothing is installed on this machine. Then ARM_CPU=cortex-a72 FOLDER/python ... runs Python as that CPU:
#   cortex-a72 (Raspberry Pi 4: no dot product), cortex-a76 (Pi 5: dot product; the default), neoverse-v1, max (int8 matrix extension as well).
# Good for results and for legal instructions; says nothing about speed, and emulation on x86 orders memory more strictly than ARM does.
# Threads work, child processes do not (the kernel would have to know the format).
# Needs a Debian or a machine with apt-get, dpkg and Debian's archive keyring. DEBIAN_MIRROR overrides the mirror of this machine's apt settings.
set -euo pipefail
cd "$(dirname "$0")/../.."
project=$PWD
mkdir -p "$1"
folder=$(cd "$1" && pwd)
host_python=${PYTHON:-python3}
[ -x .venv/bin/python ] && host_python=$project/.venv/bin/python

# what is unpacked depends on this file and on the dependencies: made again when they change
stamp=$(cat "$project/tools/arm64/environment.sh" "$project/pyproject.toml" | sha256sum | cut -c1-16)
if [ "$(cat "$folder/stamp" 2>/dev/null)" = "$stamp" ]; then
    exit 0
fi
rm -rf "$folder"
mkdir -p "$folder"

mirror=${DEBIAN_MIRROR:-$( (cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || true) |
    sed -n 's/^URIs: *//p;s/^deb \(\[[^]]*\] \)\?\([^ ]*\) .*/\2/p' | grep '/debian/*$' | sort -u | sed -n 1p)}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
if [ -z "$mirror" ] || [ ! -e "$keyring" ] || ! command -v apt-get dpkg > /dev/null; then
    echo "environment.sh: needs apt-get, dpkg, $keyring and a Debian mirror (in apt's settings, or DEBIAN_MIRROR=...)" >&2
    exit 1
fi

# apt with settings and state of its own: private_apt NAME ARCHITECTURE SUITE
private_apt() {
    local home=$folder/apt-$1
    mkdir -p "$home/state/lists/partial" "$home/cache/archives/partial" "$home/parts"
    : > "$home/status"
    echo "deb [arch=$2 signed-by=$keyring] $mirror $3 main" > "$home/sources.list"
    cat > "$home/apt.conf" << CONF
APT::Architecture "$2"; APT::Architectures "$2"; APT::Install-Recommends "false"; APT::Sandbox::User "$(id -un)";
Dir::State "$home/state"; Dir::State::status "$home/status"; Dir::Cache "$home/cache";
Dir::Etc::sourcelist "$home/sources.list"; Dir::Etc::sourceparts "$home/parts"; Dir::Etc::preferencesparts "$home/parts";
CONF
    export APT_CONFIG=$home/apt.conf
    apt-get update -qq
}

echo "arm64 environment: fetching QEMU" >&2
private_apt qemu "$(dpkg --print-architecture)" trixie
(cd "$folder/apt-qemu" && apt-get download -qq qemu-user)
dpkg-deb --fsys-tarfile "$folder"/apt-qemu/qemu-user*.deb | tar -xf - -C "$folder" ./usr/bin/qemu-aarch64
mv "$folder/usr/bin/qemu-aarch64" "$folder/qemu-aarch64"
rm -rf "$folder/usr"

echo "arm64 environment: fetching Python" >&2
private_apt python arm64 bookworm
apt-get install -qq -y --download-only python3 libstdc++6 libgomp1 > /dev/null
mkdir -p "$folder/root"
for package in "$folder"/apt-python/cache/archives/*.deb; do
    dpkg -x "$package" "$folder/root"
done
unset APT_CONFIG
rm -rf "$folder/apt-qemu" "$folder/apt-python"

echo "arm64 environment: fetching wheels" >&2
"$host_python" - > "$folder/requirements.txt" << 'PYTHON'
import importlib.metadata
import tomllib

project = tomllib.load(open("pyproject.toml", "rb"))["project"]
print("\n".join([*project["dependencies"], *project["optional-dependencies"]["onnx"], "pytest>=8.2", "hypothesis>=6.100"]))
for name in ("numba", "llvmlite"):  # the same versions on both sides: they are part of what a kernel is kept under
    try:
        print(f"{name}=={importlib.metadata.version(name)}")
    except importlib.metadata.PackageNotFoundError:
        pass
PYTHON
platforms=()
for tag in manylinux_2_28 manylinux_2_27 manylinux_2_26 manylinux_2_17 manylinux2014; do
    platforms+=(--platform "${tag}_aarch64")
done
"$host_python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target "$folder/site" --requirement "$folder/requirements.txt" \
    --python-version 3.11 --implementation cp --abi cp311 --abi abi3 --abi none --only-binary=:all: "${platforms[@]}"

cat > "$folder/python" << 'RUN'
#!/bin/bash
folder=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
exec "$folder/qemu-aarch64" -cpu "${ARM_CPU:-cortex-a76}" -L "$folder/root" -E PYTHONPATH="$folder/site${PYTHONPATH:+:$PYTHONPATH}" \
    "$folder/root/usr/bin/python3.11" "$@"
RUN
chmod +x "$folder/python"
echo "$stamp" > "$folder/stamp"
