# Installs PyTorch into /opt/venv: a wheel from wheels/ that fits the device, else from PyTorch's own index (CPU) or the default one (CUDA).
set -eu
version=$(sed -n 's/^torch==//p' constraints.txt)
wheel=
for file in wheels/torch-"$version"*.whl; do
    case "$1 $file" in
        "cpu "*+cpu*) wheel=$file ;;
        "cuda "*+cpu*) ;;
        "cuda "*.whl) [ ! -e "$file" ] || wheel=$file ;;
    esac
done
if [ -n "$wheel" ]; then
    /opt/venv/bin/pip install --find-links wheels "$wheel"
elif [ "$1" = cpu ]; then
    /opt/venv/bin/pip install "torch==$version" --index-url https://download.pytorch.org/whl/cpu
else
    /opt/venv/bin/pip install "torch==$version"
fi
