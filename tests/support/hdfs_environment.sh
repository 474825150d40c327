#!/usr/bin/env bash
# Makes a folder with a real Hadoop 2.7.3 for tests/source/test_hdfs.py, out of two source packages of PyPI:
#
#   tests/support/hdfs_environment.sh FOLDER
#   HADOOP_FOLDER=FOLDER python -m pytest -m '' tests/source/test_hdfs.py
#
#   FOLDER/jars/          namenode, datanode and client, with what they need: pyspark 2.4.8 brings them along
#   FOLDER/libhdfs.so     Hadoop's C interface, whose sources pydoop 2.0.0 brings along, compiled here
#
# Needs python3 with venv, a C compiler, and a JDK of version 11 or newer (JAVA_HOME, or the one that `javac` belongs
# to). What is there already is not made again.
set -euo pipefail
folder=$(mkdir -p "${1:?usage: tests/support/hdfs_environment.sh FOLDER}" && cd "$1" && pwd)
java_home=${JAVA_HOME:-$(dirname "$(dirname "$(readlink -f "$(command -v javac || true)")")")}
[ -e "$java_home/include/jni.h" ] || { echo "no JDK with include/jni.h: set JAVA_HOME" >&2; exit 1; }

sources() {
    # pip asks an sdist for its metadata, and these two know old setuptools only.
    [ -e "$work/venv/made" ] || {
        python3 -m venv "$work/venv"
        "$work/venv/bin/python" -m pip install --quiet 'setuptools<70' wheel
        touch "$work/venv/made"
    }
    PATH="$work/venv/bin:$PATH" python -m pip download --quiet --no-deps --no-binary :all: --no-build-isolation \
        --dest "$work" "$1==$2"
    echo "$work/$1-$2.tar.gz"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ ! -d "$folder/jars" ]; then
    names='hadoop-annotations hadoop-auth hadoop-common hadoop-hdfs avro-1 commons-beanutils commons-cli commons-codec
        commons-collections commons-configuration commons-digester commons-httpclient commons-io commons-lang-
        commons-logging commons-math3 commons-net curator gson guava htrace jackson-core-asl jackson-mapper-asl
        javax.servlet-api javax.ws.rs-api jetty- jsp-api leveldbjni log4j-1 netty-3 netty-all paranamer protobuf-java
        slf4j snappy-java xercesImpl xmlenc xz zookeeper'
    archive=$(sources pyspark 2.4.8)
    mkdir "$work/jars"
    # shellcheck disable=SC2046  # one pattern a name
    tar -xzf "$archive" -C "$work/jars" --strip-components=3 --wildcards \
        $(for name in $names; do echo "pyspark-2.4.8/deps/jars/$name*.jar"; done)
    mv "$work/jars" "$folder/jars"
fi

if [ ! -e "$folder/libhdfs.so" ]; then
    tar -xzf "$(sources pydoop 2.0.0)" -C "$work" --strip-components=3 pydoop-2.0.0/src/libhdfs
    (cd "$work" && "${CC:-cc}" -O2 -fPIC -shared -w -I. -Iinclude -Ios -Ios/posix \
        -I"$java_home/include" -I"$java_home/include/linux" \
        hdfs.c exception.c jni_helper.c common/htable.c os/posix/*.c -o libhdfs.so \
        -L"$java_home/lib/server" -ljvm -Wl,-rpath,"$java_home/lib/server")
    mv "$work/libhdfs.so" "$folder/libhdfs.so"
fi
echo "$folder has a Hadoop: HADOOP_FOLDER=$folder"
