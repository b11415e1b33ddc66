# fusedops in an image: a wheel is built in the first stage, the second one holds torch and the wheel.
#
#   docker build -t fusedops .                                   # Ampere to Hopper; about 40 minutes on 2 cores
#   docker build -t fusedops --build-arg TORCH_CUDA_ARCH_LIST=9.0a .
#   docker build -t fusedops-cpu --build-arg USE_CUDA=0 .        # a minute, for machines without a GPU
#   docker run --rm --gpus all fusedops                          # python -m fusedops check
#
# torch's wheels of PyPI bring the CUDA runtime; the host brings the driver and nvidia-container-toolkit.
ARG PYTHON=3.12

FROM python:${PYTHON}-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends build-essential git \
    && rm -rf /var/lib/apt/lists/*
ARG TORCH="torch==2.11.*"
RUN pip install --no-cache-dir "${TORCH}" "scikit-build-core>=0.11" "pybind11>=2.13" "cmake>=3.25" "ninja>=1.11"
ARG USE_CUDA=1
ARG TORCH_CUDA_ARCH_LIST="8.0;9.0a"
ARG FUSEDOPS_INSTANCE_JOBS=2
WORKDIR /src
COPY cmake/nvcc-requirements.txt cmake/
RUN if [ "${USE_CUDA}" != 0 ]; then \
      pip install --no-cache-dir --no-deps nvidia-cutlass==4.2.0.0 \
      && pip install --no-cache-dir -r cmake/nvcc-requirements.txt; \
    fi
COPY pyproject.toml CMakeLists.txt README.md LICENSE THIRD_PARTY_NOTICES.txt ./
COPY cmake cmake
COPY csrc csrc
COPY python python
RUN pip wheel --no-build-isolation --no-deps -w /wheels .

FROM python:${PYTHON}-slim-bookworm
# A compiler is for torch.compile and fusedops.jit.
RUN apt-get update && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
ARG TORCH="torch==2.11.*"
RUN pip install --no-cache-dir "${TORCH}" numpy
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-deps /wheels/*.whl && rm -r /wheels
RUN python -m fusedops info
CMD ["python", "-m", "fusedops", "check"]
