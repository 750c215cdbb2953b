// How MPI reduces each of TensorFlow's dtypes: by its own operations or by ours.

#ifndef TENSOROPT_EXEC_ENGINES_REDUCTION_H_
#define TENSOROPT_EXEC_ENGINES_REDUCTION_H_

#include <mpi.h>

#include <cstdint>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "mpi_call.h"
#include "tensorflow/core/framework/types.h"

namespace tensoropt {

// The dtypes that are combined by our own code rather than MPI's: 16-bit floats, which MPI 3 does not know, in float32
// and rounded after each pair; small integers, whose sums saturate in Open MPI's vectorised code, where TensorFlow's
// wrap around.
template <typename T>
struct Wide {
  using type = int32_t;
};
template <>
struct Wide<Eigen::half> {
  using type = float;
};
template <>
struct Wide<Eigen::bfloat16> {
  using type = float;
};

struct Sum {
  template <typename W>
  static W Apply(W a, W b) {
    return a + b;
  }
};
// A NaN on either side stays, as in TensorFlow's own reductions.
struct Max {
  template <typename W>
  static W Apply(W a, W b) {
    return (a > b || a != a) ? a : b;
  }
};
struct Min {
  template <typename W>
  static W Apply(W a, W b) {
    return (a < b || a != a) ? a : b;
  }
};

template <typename T, typename Operation>
void Combine(void* in, void* inout, int* length, MPI_Datatype*) {
  using W = typename Wide<T>::type;
  const T* a = static_cast<const T*>(in);
  T* b = static_cast<T*>(inout);
  for (int i = 0; i < *length; ++i) {
    b[i] = static_cast<T>(Operation::Apply(static_cast<W>(a[i]), static_cast<W>(b[i])));
  }
}

// How MPI reduces one TensorFlow dtype.
struct Reduction {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Op operation = MPI_OP_NULL;
};

// A datatype and operations of our own, made once per process.
template <typename T>
absl::Status OwnReduction(const std::string& op, Reduction* reduction) {
  static std::mutex mutex;
  static MPI_Datatype type = MPI_DATATYPE_NULL;
  static MPI_Op sum = MPI_OP_NULL, max = MPI_OP_NULL, min = MPI_OP_NULL;
  std::lock_guard<std::mutex> lock(mutex);
  if (type == MPI_DATATYPE_NULL) {
    MPI_Datatype made;
    TENSOROPT_MPI(MPI_Type_contiguous, sizeof(T), MPI_BYTE, &made);
    TENSOROPT_MPI(MPI_Type_commit, &made);
    TENSOROPT_MPI(MPI_Op_create, (&Combine<T, Sum>), 1, &sum);
    TENSOROPT_MPI(MPI_Op_create, (&Combine<T, Max>), 1, &max);
    TENSOROPT_MPI(MPI_Op_create, (&Combine<T, Min>), 1, &min);
    type = made;
  }
  reduction->type = type;
  reduction->operation = op == "sum" ? sum : op == "max" ? max : min;
  return absl::OkStatus();
}

inline absl::Status MakeReduction(tensorflow::DataType dtype, const std::string& op, Reduction* reduction) {
  reduction->operation = op == "sum" ? MPI_SUM : op == "max" ? MPI_MAX : MPI_MIN;
  switch (dtype) {
    case tensorflow::DT_HALF:
      return OwnReduction<Eigen::half>(op, reduction);
    case tensorflow::DT_BFLOAT16:
      return OwnReduction<Eigen::bfloat16>(op, reduction);
    case tensorflow::DT_FLOAT:
      reduction->type = MPI_FLOAT;
      break;
    case tensorflow::DT_DOUBLE:
      reduction->type = MPI_DOUBLE;
      break;
    case tensorflow::DT_INT8:
      return OwnReduction<int8_t>(op, reduction);
    case tensorflow::DT_INT16:
      return OwnReduction<int16_t>(op, reduction);
    case tensorflow::DT_INT32:
      reduction->type = MPI_INT32_T;
      break;
    case tensorflow::DT_INT64:
      reduction->type = MPI_INT64_T;
      break;
    case tensorflow::DT_UINT8:
      return OwnReduction<uint8_t>(op, reduction);
    case tensorflow::DT_UINT16:
      return OwnReduction<uint16_t>(op, reduction);
    case tensorflow::DT_UINT32:
      reduction->type = MPI_UINT32_T;
      break;
    case tensorflow::DT_UINT64:
      reduction->type = MPI_UINT64_T;
      break;
    case tensorflow::DT_BOOL:
      if (op == "sum") break;
      reduction->type = MPI_C_BOOL;
      reduction->operation = op == "max" ? MPI_LOR : MPI_LAND;
      break;
    case tensorflow::DT_COMPLEX64:
      if (op == "sum") reduction->type = MPI_C_FLOAT_COMPLEX;
      break;
    case tensorflow::DT_COMPLEX128:
      if (op == "sum") reduction->type = MPI_C_DOUBLE_COMPLEX;
      break;
    default:
      break;
  }
  if (reduction->type != MPI_DATATYPE_NULL) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("MPI has no ", op, " of ", tensorflow::DataTypeString(dtype)));
}

}  // namespace tensoropt

#endif  // TENSOROPT_EXEC_ENGINES_REDUCTION_H_
